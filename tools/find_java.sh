#!/usr/bin/env bash
# Finds a full Java 17 or newer for Spark; installs one where a package manager can; else says exactly what to do.
# The choice is remembered in .java/home, which tools/java_home.sh exports as JAVA_HOME.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p .java

major() { # the major version of the java at $1, or nothing
  "$1" -version 2>&1 | sed -nE '1s/.*version "(1\.)?([0-9]+).*/\2/p'
}

is_good() { # 17 or newer, and with the modules Spark loads at its start (trimmed runtimes lack them)
  [ -x "$1" ] && [ "$(major "$1" || echo 0)" -ge 17 ] 2>/dev/null \
    && "$1" --list-modules 2>/dev/null | grep -q '^jdk.incubator.vector'
}

remember() {
  local home
  home="$(dirname "$(dirname "$(readlink -f "$1")")")"
  echo "$home" > .java/home
  echo "Java $(major "$1") for Spark: found"
}

look() {
  local candidate
  for candidate in \
    "${JAVA_HOME:+$JAVA_HOME/bin/java}" \
    "$(command -v java 2>/dev/null)" \
    "$(/usr/libexec/java_home -v 17+ 2>/dev/null)/bin/java" \
    /usr/lib/jvm/*/bin/java \
    /opt/homebrew/opt/openjdk*/bin/java \
    "$HOME"/.sdkman/candidates/java/current/bin/java; do
    if [ -n "$candidate" ] && is_good "$candidate"; then
      remember "$candidate"
      return 0
    fi
  done
  return 1
}

look && exit 0

echo "No Java 17 or newer found; Spark needs one. Trying to install it …"
as_root=""
if [ "$(id -u)" -ne 0 ] && command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root="sudo -n"; fi
if [ "$(id -u)" -eq 0 ] || [ -n "$as_root" ]; then
  if command -v apt-get >/dev/null; then
    $as_root apt-get update -qq && { $as_root apt-get install -y -qq openjdk-21-jre-headless \
      || $as_root apt-get install -y -qq openjdk-17-jre-headless; }
  elif command -v dnf >/dev/null; then
    $as_root dnf install -y -q java-21-openjdk-headless || $as_root dnf install -y -q java-17-openjdk-headless
  elif command -v apk >/dev/null; then
    $as_root apk add --quiet openjdk17-jre-headless
  fi
elif command -v brew >/dev/null; then
  brew install --quiet openjdk@17
fi >.java/install.log 2>&1

look && exit 0

cat >&2 <<'TEXT'
Spark needs Java 17 or newer, and it could not be installed here (see .java/install.log). Do one of these, then try again:
  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless
  Fedora:          sudo dnf install java-17-openjdk-headless
  macOS:           brew install openjdk@17
  or set JAVA_HOME to a full JDK or JRE 17+ (one with the module jdk.incubator.vector).
TEXT
exit 1
