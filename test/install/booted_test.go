package install

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// booted is a root in which systemd is process 1. It has processes, mounts and a control group of
// its own, and the network of this machine.
type booted struct {
	root
	// pid is the number of its process 1 on this machine.
	pid int
}

// group is the control group of the booted root $1; it is named after the folder of the root.
const group = `group=weir-test-$(echo "$1" | tr / -)
mount -t cgroup2 cgroup2 "$1/mnt"
`

// boot starts systemd in the root $1. /proc/sys is read-only, so systemd does not change settings
// of this machine's kernel.
const boot = group + `mkdir "$1/mnt/$group"
echo 0 > "$1/mnt/$group/cgroup.procs"
umount "$1/mnt"
exec unshare --cgroup sh -euc '
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
for device in null zero full random urandom tty; do
	touch dev/$device
	mount --bind /dev/$device dev/$device
done
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . mnt
umount -l /mnt
exec env -i container=weir-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd
' sh "$1"`

// unboot removes the control group of the root $1, whose processes have ended.
const unboot = group + `find "$1/mnt/$group" -depth -type d -exec rmdir {} +`

// boot starts systemd in the root, and waits until it has started all its units. It ends with the
// test.
func (r root) boot() booted {
	r.t.Helper()
	var said bytes.Buffer
	command := exec.Command("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child",
		"sh", "-euc", boot, "sh", r.dir)
	command.Stdout, command.Stderr = &said, &said
	if err := command.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = command.Process.Kill() // Process 1 of the root ends with it, and all others with that.
		_ = command.Wait()
		clean := exec.Command("unshare", "--mount", "sh", "-euc", unboot, "sh", r.dir)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := stack.Await(ctx, "the control group to be removed", func(context.Context) error {
			output, err := exec.Command(clean.Path, clean.Args[1:]...).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, output)
			}
			return err
		})
		if err != nil {
			r.t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	var pid int
	err := stack.Await(ctx, "systemd to have started", func(context.Context) error {
		children, err := exec.Command("pgrep", "--parent", strconv.Itoa(command.Process.Pid)).Output()
		if err != nil {
			return fmt.Errorf("unshare has no child: %w\n%s", err, said.String())
		}
		if pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
			return err
		}
		state, _ := booted{r, pid}.command("systemctl is-system-running").CombinedOutput()
		switch strings.TrimSpace(string(state)) {
		case "running":
		case "degraded": // A unit of Debian's found that it cannot work here.
			failed, _ := booted{r, pid}.command("systemctl --failed --plain --no-legend").CombinedOutput()
			r.t.Logf("not of Weir: %s", failed)
		default:
			return fmt.Errorf("systemd says %s%s", state, said.String())
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return booted{r, pid}
}

// command returns the command that runs a script in the booted root.
func (b booted) command(script string) *exec.Cmd {
	c := exec.CommandContext(b.t.Context(), "nsenter", "--target", strconv.Itoa(b.pid), "--mount", "--pid", "--uts",
		"--ipc", "--cgroup", "bash", "-euo", "pipefail", "-c", "cd\n"+script)
	c.Env = rootEnvironment()
	return c
}

// run runs a script in the booted root, in the home folder of its root user, and returns its
// output.
func (b booted) run(script string) string {
	b.t.Helper()
	output, err := b.command(script).CombinedOutput()
	if err != nil {
		log, _ := b.command("journalctl --unit weir --no-pager --lines 40").CombinedOutput()
		b.t.Fatalf("%v\n%s\n%s\nthe journal:\n%s", err, script, output, log)
	}
	return string(output)
}

// show returns a property of the service.
func (b booted) show(property string) string {
	b.t.Helper()
	return strings.TrimSpace(b.run("systemctl show weir --value --property " + property))
}

// awaitService waits until the service is active with another main process than before, and
// answers. It returns the number of that process in the root.
func (b booted) awaitService(before string) (pid string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	err := stack.Await(ctx, "the service to be active", func(context.Context) error {
		state := b.show("ActiveState")
		if pid = b.show("MainPID"); state != "active" || pid == before || pid == "0" {
			return fmt.Errorf("it is %s, its process %s", state, pid)
		}
		if output, err := b.command("curl -fsS http://127.0.0.1:8080/readyz").CombinedOutput(); err != nil {
			return fmt.Errorf("it does not answer: %w %s", err, output)
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return pid
}

// The package's service under a systemd that has booted: it starts when it is asked to, as a user
// without rights, and answers; after kill -9 it is back with its state; it stops in time; an
// upgrade restarts it; a removal stops it and keeps its state, a purge removes the state.
func TestTheServiceRunsUnderSystemd(t *testing.T) {
	first, second, _ := releases(t)
	for _, debian := range debians {
		t.Run(debian, func(t *testing.T) {
			r := newRoot(t, debian)
			newer := forThisMachine(t, "weir_0.1.1_amd64.deb")
			r.copy(first+forThisMachine(t, "/weir_0.1.0_amd64.deb"), "root")
			r.copy(second+"/"+newer, "root")
			r.run("apt-get -qq update\napt-get -qq -y install --no-install-recommends systemd procps >/dev/null 2>&1")
			b := r.boot()
			b.run(forThisMachine(t, "apt-get -qq -y install --no-install-recommends ./weir_0.1.0_amd64.deb"))
			if state := b.show("ActiveState") + " " + b.show("UnitFileState"); state != "inactive disabled" {
				t.Errorf("after the installation the service is %s", state)
			}
			token := b.run(fencedBlocks(t, "From the Debian package")[1])
			b.awaitService("0")
			b.checkConfinement()
			policies := b.checkReturns(strings.TrimSpace(token[strings.LastIndex(strings.TrimSpace(token), "\n")+1:]))
			b.checkPackageChanges(newer, policies)
		})
	}
}

// checkConfinement checks the rights of the service's process, and the score that systemd gives it.
func (b booted) checkConfinement() {
	b.t.Helper()
	status := b.run("cat /proc/" + b.show("MainPID") + "/status")
	for _, want := range []string{`Uid:\t6[1-5]\d{3}\t`, `CapEff:\t0+\n`, `CapBnd:\t0+\n`, `NoNewPrivs:\t1\n`,
		`Seccomp:\t2\n`} {
		if !regexp.MustCompile(want).MatchString(status) {
			b.t.Errorf("the status of the service's process lacks %s:\n%s", want, status)
		}
	}
	if mode := b.run("stat --format '%A' /var/lib/private/weir"); mode != "drwx------\n" {
		b.t.Errorf("the state has the mode %s", mode)
	}
	output := b.run("systemd-analyze security --threshold=20 --no-pager weir")
	overall := regexp.MustCompile(`Overall exposure level for weir.service: .*`).FindString(output)
	if overall == "" {
		b.t.Errorf("systemd about the service:\n%s", output)
	}
	b.t.Log(overall)
}

// checkReturns writes policies with a token, and follows them through kill -9, a stop and a start.
// It returns the commands that show them.
func (b booted) checkReturns(token string) (policies string) {
	b.t.Helper()
	policies = "export WEIR_TOKEN=" + token + "\nweir get policies"
	b.run("export WEIR_TOKEN=" + token + "\nweir init api\nweir apply policies.yaml")
	pid := b.show("MainPID")
	b.run("kill -9 " + pid)
	pid = b.awaitService(pid)
	b.mustShow(policies, "per-caller")

	begin := time.Now()
	b.run("systemctl stop weir")
	took := time.Since(begin).Round(time.Millisecond)
	result := b.show("ActiveState") + " " + b.show("Result")
	b.t.Logf("it stopped in %v", took)
	if result != "inactive success" || took > mostToStop {
		b.t.Errorf("it stopped in %v, and is %s", took, result)
	}
	b.run("systemctl start weir")
	b.awaitService(pid)
	b.mustShow(policies, "per-caller")
	return policies
}

// mostToStop is the time in which the service stops. No request is under way.
const mostToStop = 10 * time.Second

// checkPackageChanges follows the running service through an upgrade, a removal and a purge, as the
// table of the page says.
func (b booted) checkPackageChanges(newer, policies string) {
	b.t.Helper()
	pid := b.show("MainPID")
	b.run("apt-get -qq -y install --no-install-recommends ./" + newer)
	b.awaitService(pid)
	b.mustShow("curl -fsS http://127.0.0.1:8080/version", "0.1.1")
	b.mustShow(policies, "per-caller")

	const left = "\nls -d /usr/bin/weir /etc/default/weir /var/lib/private/weir/weir.db 2>/dev/null || true"
	b.run("apt-get -qq -y remove weir")
	if state := b.show("ActiveState"); state != "inactive" {
		b.t.Errorf("after a removal the service is %s", state)
	}
	if output := b.run(left); output != "/etc/default/weir\n/var/lib/private/weir/weir.db\n" {
		b.t.Errorf("after a removal there is\n%s", output)
	}
	b.run("apt-get -qq -y purge weir")
	if output := b.run(left); output != "" {
		b.t.Errorf("after a purge there is\n%s", output)
	}
}

// mustShow runs a script, whose output must have a text.
func (b booted) mustShow(script, text string) {
	b.t.Helper()
	if output := b.run(script); !strings.Contains(output, text) {
		b.t.Errorf("the output lacks %q:\n%s", text, output)
	}
}
