"""What runs look like: tables and pictures, one style for all of them, the data beside each picture."""
