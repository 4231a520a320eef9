"""The experiments of SUBLIM: what policies cost the server, and what they save the device."""
