# Sourced: prints nothing, exports JAVA_HOME if tools/find_java.sh had to choose one. Spark then finds it.
java_home_file="$(dirname "${BASH_SOURCE[0]}")/../.java/home"
if [ -r "$java_home_file" ]; then
  JAVA_HOME="$(cat "$java_home_file")"
  export JAVA_HOME
fi
