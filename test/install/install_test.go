// Package install tests releases where users run them: on an empty Debian, with the commands of
// docs/run/releases.md. It needs root, and the network for Debian and PyPI.
package install

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// atMost is the time from nothing to the first 429 that users are promised, on a machine that runs
// no other program.
const atMost = 60 * time.Second

// debians are the releases of Debian that Weir is installed on.
var debians = []string{"bookworm", "trixie"}

// world has the releases and the key that signed them, which are made once for all tests.
var world struct {
	sync.Once
	public, first, second string
}

func prepare(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the roots of Debian need root")
	}
	for _, port := range []int{10000, 9901, 8080} {
		if owner := stack.InUse(port); owner != "" {
			t.Fatalf("port %d, which the demo needs, is used by %s", port, owner)
		}
	}
}

// releases returns the folders of two releases, and the public key.
func releases(t *testing.T) (first, second, public string) {
	t.Helper()
	prepare(t)
	world.Do(func() {
		dir, err := os.MkdirTemp("", "weir-install-")
		if err != nil {
			t.Fatal(err)
		}
		key, public := newKey(t)
		for _, release := range []struct {
			version string
			path    *string
		}{{"0.1.0", &world.first}, {"0.1.1", &world.second}} {
			built := buildRelease(t, release.version, key)
			*release.path = filepath.Join(dir, release.version)
			if err := os.CopyFS(*release.path, os.DirFS(built)); err != nil {
				t.Fatal(err)
			}
		}
		world.public = filepath.Join(dir, "cosign.pub")
		content, err := os.ReadFile(public)
		if err == nil {
			err = os.WriteFile(world.public, content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if world.public == "" {
		t.Fatal("the releases could not be built")
	}
	return world.first, world.second, world.public
}

func TestMain(m *testing.M) {
	code := m.Run()
	if world.first != "" {
		os.RemoveAll(filepath.Dir(world.first))
	}
	os.Exit(code)
}

// demo runs the commands that start a demo, then requests to it, ends it with Ctrl-C, and shows all
// that is left. With job control a process in the background takes Ctrl-C.
func demo(start, requests string) string {
	return fmt.Sprintf(`set -m
(%s) > demo.log 2>&1 &
demo=$!
until grep -q 'Ctrl-C ends it' demo.log; do
	kill -0 $demo || { cat demo.log; exit 1; }
	sleep 0.1
done
cat demo.log
{
%s
} 2>/dev/null # the progress of curl
date +'first 429 at %%s.%%N'
kill -INT -- -$demo
wait $demo
echo "exit code $?"
tail -n 1 demo.log
for process in /proc/[0-9]*; do
	case $(cat $process/comm 2>/dev/null) in weir | envoy) echo "LEFT: $process" ;; esac
done
for file in /tmp/weir* .config/weir/token; do [ ! -e $file ] || echo "LEFT: $file"; done
`, start, requests)
}

// mustLimit checks the output of demo: 429 comes in time, and Ctrl-C leaves nothing. The time does
// not include the part in which other programs used the processors.
func mustLimit(t *testing.T, output string, ran span) {
	t.Helper()
	for _, want := range []string{`(?m)^ +\d+ 200\n +\d+ 429\nHTTP/1.1 429 Too Many Requests`,
		`"violated-policies":\["shorten-per-ip"\]`,
		`(?m)^exit code 0\nStopping\.$`} {
		if !regexp.MustCompile(want).MatchString(output) {
			t.Errorf("the output lacks %s:\n%s", want, output)
		}
	}
	if strings.Contains(output, "LEFT: ") {
		t.Errorf("the demo leaves something:\n%s", output)
	}
	at := regexp.MustCompile(`first 429 at (\d+)\.(\d{9})`).FindStringSubmatch(output)
	if at == nil {
		t.Fatalf("no 429 in\n%s", output)
	}
	var seconds, rest int64
	fmt.Sscan(at[1], &seconds)
	fmt.Sscan(strings.TrimLeft(at[2], "0"), &rest)
	took := time.Unix(seconds, rest).Sub(ran.begun)
	others := time.Duration(float64(ran.others) * took.Seconds() / ran.whole.Seconds())
	t.Logf("from nothing to the first 429: %.1f s, %.1f s of them for other programs", took.Seconds(), others.Seconds())
	if took-others > atMost {
		t.Errorf("it took %v, more than %v, without %v for other programs", took, atMost, others)
	}
}

// From the archive: the checks of the page hold, and refuse a changed archive; then the demo runs.
func TestTheArchiveLimitsWithinAMinute(t *testing.T) {
	first, _, public := releases(t)
	for _, debian := range debians {
		t.Run(debian, func(t *testing.T) {
			r := newRoot(t, debian)
			archive := forThisMachine(t, "weir_0.1.0_linux_amd64.tar.gz")
			for _, name := range []string{"checksums.txt", "checksums.txt.sig", archive} {
				r.copy(filepath.Join(first, name), "root")
			}
			r.copy(public, "root")
			checks := fencedBlocks(t, "Check the files")
			output := r.run(checks[0])
			if !strings.Contains(output, archive+": OK") || !strings.Contains(output, "Verified OK") {
				t.Errorf("the checks print\n%s", output)
			}
			bad := r.run("mkdir bad && cp * bad 2>/dev/null || true; cd bad\n" +
				"echo >> " + archive + "; echo >> checksums.txt\n" +
				"! sha256sum --check --ignore-missing checksums.txt\nbase64 -d checksums.txt.sig > checksums.bin\n" +
				"! openssl dgst -sha256 -verify cosign.pub -signature checksums.bin checksums.txt\ncd && rm -r bad")
			if !strings.Contains(bad, archive+": FAILED") || strings.Contains(strings.ToLower(bad), "verified ok") {
				t.Errorf("of a changed archive the checks print\n%s", bad)
			}
			blocks := fencedBlocks(t, "From the archive")
			output, ran := r.runAndMeasure("apt-get -qq update\n" +
				"apt-get -qq install --no-install-recommends python3-venv >/dev/null\n" +
				demo(forThisMachine(t, strings.ReplaceAll(blocks[0], "./weir demo", "exec ./weir demo")), blocks[1]))
			mustLimit(t, output, ran)
		})
	}
}

// From the package: the demo runs; the unit, the manual page and the completions are as Debian
// wants them; an upgrade and a removal keep settings and state, a purge removes them.
func TestThePackageLimitsWithinAMinute(t *testing.T) {
	first, second, _ := releases(t)
	for _, debian := range debians {
		t.Run(debian, func(t *testing.T) {
			r := newRoot(t, debian)
			newer := forThisMachine(t, "weir_0.1.1_amd64.deb")
			r.copy(filepath.Join(first, forThisMachine(t, "weir_0.1.0_amd64.deb")), "root")
			r.copy(filepath.Join(second, newer), "root")
			install, start, _ := strings.Cut(fencedBlocks(t, "From the Debian package")[0], "\n")
			install = strings.Replace(install, "apt-get install", "apt-get install -y --no-install-recommends", 1)
			output, ran := r.runAndMeasure("apt-get -qq update\n" + forThisMachine(t, install) + "\n" +
				demo("exec "+start, fencedBlocks(t, "From the archive")[1]))
			mustLimit(t, output, ran)
			checkPackage(t, r)
			checkUpgrade(t, r, newer)
		})
	}
}

// checkPackage asks systemd about the unit, man about the page and bash about the completion.
func checkPackage(t *testing.T, r root) {
	t.Helper()
	r.run("apt-get -qq install --no-install-recommends systemd man-db bash-completion >/dev/null 2>&1")
	unit := "/usr/lib/systemd/system/weir.service"
	if output := r.run("systemd-analyze verify " + unit + " 2>&1"); strings.Contains(output, "weir") {
		t.Errorf("systemd about the unit:\n%s", output)
	}
	output := r.run("systemd-analyze security --offline=true --threshold=20 --no-pager " + unit + " 2>&1")
	overall := regexp.MustCompile(`Overall exposure level for weir.service: .*`).FindString(output)
	if overall == "" {
		t.Errorf("systemd about the unit:\n%s", output)
	}
	t.Log(overall)
	if output := r.run("man --warnings -Tutf8 weir 2>&1 >/dev/null"); output != "" {
		t.Errorf("man about the page:\n%s", output)
	}
	if output := r.run("man -Tutf8 weir 2>&1 | cat"); !strings.Contains(output, "weir consumers bypass") {
		t.Errorf("the page lacks a command:\n%s", output)
	}
	output = r.run("source /usr/share/bash-completion/completions/weir\n" +
		"COMP_WORDS=(weir de) COMP_CWORD=1\n_weir\necho ${COMPREPLY[*]}")
	if output != "demo\n" {
		t.Errorf("bash completes weir de to %q", output)
	}
}

// serve starts the control plane with the settings of the package, and runs a command.
const serve = `set -a; . /etc/default/weir; set +a
WEIR_DATA_DIR=/var/lib/weir WEIR_ADMIN_TOKEN=administrator-of-the-test weir serve > serve.log 2>&1 &
until curl -fs http://127.0.0.1:8080/readyz >/dev/null; do
	kill -0 $! || { cat serve.log; exit 1; }
	sleep 0.1
done
export WEIR_TOKEN=administrator-of-the-test
%s
kill $!; wait $!
`

// checkUpgrade makes a state and a setting, and follows both through an upgrade, a removal and a
// purge.
func checkUpgrade(t *testing.T, r root, newer string) {
	t.Helper()
	r.run("mkdir -p /var/lib/weir; echo WEIR_DRAIN=0s >> /etc/default/weir\n" +
		fmt.Sprintf(serve, "weir init api\nweir apply policies.yaml"))
	output := r.run("apt-get -qq install -y --no-install-recommends ./" + newer + " >/dev/null 2>&1\nweir version\n" +
		"tail -n 1 /etc/default/weir\n" + fmt.Sprintf(serve, "weir get policies"))
	for _, want := range []string{"0.1.1\nWEIR_DRAIN=0s\n", "per-caller"} {
		if !strings.Contains(output, want) {
			t.Errorf("after the upgrade the output lacks %q:\n%s", want, output)
		}
	}
	list := "; ls -d /usr/bin/weir /usr/share/weir /etc/default/weir /var/lib/weir/weir.db 2>/dev/null || true"
	output = r.run("apt-get -qq remove -y weir >/dev/null 2>&1" + list)
	if output != "/etc/default/weir\n/var/lib/weir/weir.db\n" {
		t.Errorf("after a removal there is\n%s", output)
	}
	if output := r.run("apt-get -qq purge -y weir >/dev/null 2>&1" + list); output != "" {
		t.Errorf("after a purge there is\n%s", output)
	}
}
