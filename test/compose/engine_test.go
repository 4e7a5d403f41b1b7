// Package compose builds the images of the Dockerfile and runs docker-compose.yml, with Docker's
// engine and Compose. The comments of both files say how, and the tests follow them. `make
// test-compose` runs this package: TestImages in the machine's network, because builds download,
// and TestServices in a network of its own.
package compose

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

const repository = "../.."

// An engine is Docker's engine with sockets and folders of its own. Images and volumes stay in the
// cache from one run to the next.
type engine struct{ env []string }

// startEngine runs an engine until the test ends.
func startEngine(t *testing.T, arguments ...string) *engine {
	t.Helper()
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	lockEngine(t, cache)
	// Paths of sockets must be short, and the paths of tests' folders are not.
	dir, err := os.MkdirTemp("", "engine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// Debian's programs come first: their versions belong together.
	path := "PATH=/usr/sbin:/usr/bin:/sbin:/bin:" + os.Getenv("PATH")
	socket := "unix://" + filepath.Join(dir, "docker.sock")
	p, err := stack.Start(stack.Command{Name: "dockerd", Path: "/usr/sbin/dockerd", Env: []string{path},
		Args: append([]string{"--data-root", filepath.Join(cache, "engine"), "--exec-root", filepath.Join(dir, "exec"),
			"--pidfile", filepath.Join(dir, "docker.pid"), "--host", socket}, arguments...)})
	if err != nil {
		t.Fatal(err, "; tools/setup.sh compose installs it")
	}
	t.Cleanup(func() { stopEngine(t, p) })
	e := &engine{append(os.Environ(), path, "DOCKER_HOST="+socket, "DOCKER_CONFIG="+addPlugin(t, cache),
		// The engine of Debian 12 builds with BuildKit only if a further program is installed.
		"DOCKER_BUILDKIT=0")}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = p.AwaitReady(ctx, func(ctx context.Context) error { _, err := e.try(ctx, "docker version"); return err })
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func stopEngine(t *testing.T, p *stack.Process) {
	if !p.Running() {
		t.Errorf("the engine has ended by itself: %v", p.Err())
	}
	if t.Failed() {
		t.Logf("dockerd wrote at last:\n%s", p.Tail(20))
	}
	if !p.Stop(30 * time.Second) {
		t.Error("the engine did not end in time")
	}
}

// lockEngine waits until no other run uses the folder of the engine.
func lockEngine(t *testing.T, cache string) {
	t.Helper()
	lock, err := os.Create(filepath.Join(cache, "engine.lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// addPlugin returns a folder of settings for the client of Docker, in which it finds Compose.
func addPlugin(t *testing.T, cache string) string {
	t.Helper()
	dir := t.TempDir()
	plugins := filepath.Join(dir, "cli-plugins")
	err := os.Mkdir(plugins, 0o755)
	if err == nil {
		err = os.Symlink(filepath.Join(cache, "bin", "docker-compose"), filepath.Join(plugins, "docker-compose"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a line for the shell in the root of the repository. It returns the line's output.
func (e *engine) run(t *testing.T, line string) string {
	t.Helper()
	output, err := e.try(context.Background(), line)
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, output)
	}
	return output
}

// try does the same, and returns errors. The output then includes the standard error.
func (e *engine) try(ctx context.Context, line string) (string, error) {
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", line)
	command.Dir, command.Env = repository, e.env
	var output, errors strings.Builder
	command.Stdout, command.Stderr = &output, &errors
	if err := command.Run(); err != nil {
		return output.String() + errors.String(), err
	}
	return output.String(), nil
}

// readFile returns a file of the repository.
func readFile(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// commandsOf returns the commands that the comment at the top of a file names, without the words
// behind each.
func commandsOf(t *testing.T, name string) (commands []string) {
	t.Helper()
	top, _, _ := strings.Cut(readFile(t, name), "\n\n")
	for line := range strings.Lines(top) {
		if m := regexp.MustCompile(`^#   (docker build .*? \.|docker compose .*?|curl .*?)(?:  .*)?\n?$`).FindStringSubmatch(line); m != nil {
			commands = append(commands, m[1])
		}
	}
	return commands
}
