package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

// A root is the file system of an empty Debian.
type root struct {
	t   *testing.T
	dir string
}

// newRoot makes a root of a release of Debian, like bookworm.
func newRoot(t *testing.T, debian string) root {
	t.Helper()
	r := root{t, filepath.Join(t.TempDir(), debian)}
	make := exec.Command("mmdebstrap", "--variant=minbase", "--include=ca-certificates,curl,openssl", debian, r.dir)
	if output, err := make.CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, output)
	}
	// It reaches the network as this machine does, with the authorities that this machine trusts.
	r.copy("/etc/resolv.conf", "etc")
	r.copy("/etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs")
	return r
}

// copy copies a file of this machine into a folder of the root.
func (r root) copy(path, folder string) {
	r.t.Helper()
	output, err := exec.Command("cp", "-L", path, filepath.Join(r.dir, folder)).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v\n%s", err, output)
	}
}

// inside runs $2 in the root $1, with processes and mounts of its own, which end with it.
const inside = `mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec chroot "$1" bash -euo pipefail -c "$2"`

// run runs a script in the root, in the home folder of its root user, and returns its output.
func (r root) run(script string) string {
	r.t.Helper()
	output, _ := r.runAndMeasure(script)
	return output
}

// span is the time in which a script ran.
type span struct {
	begun time.Time
	whole time.Duration
	// others is the part of whole in which other programs used the processors: a second in which
	// they used half of the processors counts as half a second.
	others time.Duration
}

// runAndMeasure does the same as run, and returns the duration too.
func (r root) runAndMeasure(script string) (string, span) {
	r.t.Helper()
	begun, before := time.Now(), processorTime(r.t)
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child",
		"sh", "-euc", inside, "sh", r.dir, "cd\n"+script)
	command.Env = rootEnvironment()
	output, err := command.CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v\n%s\n%s", err, script, output)
	}
	own := command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	others := max(processorTime(r.t)-before-own, 0) / time.Duration(runtime.NumCPU())
	return string(output), span{begun, time.Since(begun), others}
}

// processorTime returns the processor time that all processes of the machine have used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	used, err := figures.EverybodysTime()
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// rootEnvironment returns the environment of scripts in a root.
func rootEnvironment() []string {
	return append(networkSettings(), "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

// networkSettings returns the variables by which this machine reaches PyPI.
func networkSettings() (all []string) {
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "PIP_") || strings.HasPrefix(name, "SSL_CERT") ||
			strings.HasSuffix(strings.ToLower(name), "_proxy") {
			all = append(all, setting)
		}
	}
	return all
}

// fencedBlocks returns the blocks of bash of a section of the page on releases, in order.
func fencedBlocks(t *testing.T, section string) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/run/releases.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for _, part := range strings.Split(text, "```bash\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, strings.ReplaceAll(block, "sudo ", "")) // The user of a root is root.
	}
	if !found || len(blocks) == 0 {
		t.Fatalf("docs/run/releases.md has no commands in %q", section)
	}
	return blocks
}

// architecture returns Debian's name for this machine's processor.
func architecture(t *testing.T) string {
	t.Helper()
	name, err := exec.Command("dpkg", "--print-architecture").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(name))
}

// forThisMachine returns commands of the page with this machine's architecture.
func forThisMachine(t *testing.T, commands string) string {
	t.Helper()
	return strings.ReplaceAll(commands, "amd64", architecture(t))
}

// buildRelease builds a release for this machine with a version, and signs it.
func buildRelease(t *testing.T, version, key string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), version)
	commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	builder, err := filepath.Abs("../../build/release-builder")
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(builder, "-root", "../..", "-module", "../../build/weir.wasm", "-version", version,
		"-commit", strings.TrimSpace(string(commit)), "-platforms", "linux/"+architecture(t), "-key", key, "-release",
		"-out", dir)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, output, "make test-install builds the program that builds releases")
	}
	return dir
}

// newKey makes a key that signs as the page on releases says, and its public half.
func newKey(t *testing.T) (key, public string) {
	t.Helper()
	dir := t.TempDir()
	key, public = filepath.Join(dir, "cosign.key"), filepath.Join(dir, "cosign.pub")
	script := fmt.Sprintf("openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out %[1]s && "+
		"openssl pkey -in %[1]s -pubout -out %[2]s", key, public)
	if output, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return key, public
}
