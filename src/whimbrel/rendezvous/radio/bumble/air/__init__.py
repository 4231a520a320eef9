"""An air in software: Bumble's Controller and LocalLink, made to behave as the standard says.

``controller`` is one radio, ``ether`` the range between radios, ``server`` a process that offers radios by HCI over
TCP.
"""
