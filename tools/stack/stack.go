// Package stack runs Weir's parts on one machine, as real processes: Envoy with the filter, the
// control plane, and a small upstream. `weir demo` and the end-to-end tests are built from it.
//
// Every process is the leader of a process group of its own, so that Ctrl-C in a terminal reaches
// only the launcher, which then stops them in order; and the kernel of Linux kills every one of
// them when the launcher dies, however it dies.
package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// pollEvery is how often Await looks again.
const pollEvery = 15 * time.Millisecond

// Await returns nil as soon as ready does. It gives up when ctx ends, with the last reason that
// ready gave.
func Await(ctx context.Context, what string, ready func(context.Context) error) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, err)
		case <-ticker.C:
		}
	}
}

// SayOnce wraps a condition for Await: the first time that it has not held for a while, say is
// given the reason.
func SayOnce(after time.Duration, say func(why error), ready func(context.Context) error) func(context.Context) error {
	begun, said := time.Now(), false
	return func(ctx context.Context) error {
		err := ready(ctx)
		if err != nil && !said && time.Since(begun) >= after {
			said = true
			say(err)
		}
		return err
	}
}

// CacheDir returns the folder of the programs that tools/setup.sh installs: $WEIR_CACHE, else weir
// in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("WEIR_CACHE"); dir != "" {
		return dir, nil
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "weir"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: %w; set WEIR_CACHE", err)
	}
	return filepath.Join(home, ".cache", "weir"), nil
}

// EnvoyBinary finds Envoy where tools/setup.sh puts it.
func EnvoyBinary() (string, error) {
	dir, err := CacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "bin", "envoy")
	if err := Executable(path); err != nil {
		return "", fmt.Errorf("Envoy is not installed (%w): run `make setup`", err)
	}
	return path, nil
}

// Executable returns an error if there is no program at path.
func Executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not a program", path)
	}
	return nil
}
