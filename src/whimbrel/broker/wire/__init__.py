"""Wire: connections and their clients, MQTT properties, and the bytes that wait to be written."""
