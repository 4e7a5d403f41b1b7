package figures

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit in which the kernel reports processor time.
const ticksPerSecond = 100

// EverybodysTime returns the processor time that all processes of the machine have used since it
// started.
func EverybodysTime() (time.Duration, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	// The first line sums all processors: user, nice, system, and then the time of no process.
	var name string
	var user, nice, system int
	if _, err := fmt.Sscan(string(content), &name, &user, &nice, &system); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return time.Duration(user+nice+system) * time.Second / ticksPerSecond, nil
}

// ProcessorTime returns the processor time that a process has used, including its ended threads, to
// the nanosecond.
func ProcessorTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	// A process's clock is named by its number as clock_getcpuclockid(3) does it: the complement,
	// and 2 for all time that it ran.
	if err := unix.ClockGettime(int32(^uint32(pid)<<3|2), &t); err != nil {
		return 0, fmt.Errorf("the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Resident returns the memory of a process, in millions of bytes.
func Resident(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var total, resident int
	if _, err := fmt.Sscan(string(content), &total, &resident); err != nil {
		return 0, fmt.Errorf("/proc/%d/statm is %q: %w", pid, content, err)
	}
	return Rounded(float64(resident*os.Getpagesize()) / 1e6), nil
}

// Rounded leaves out digits that were not measured.
func Rounded(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// Machine describes the machine that this runs on.
func Machine() string {
	content, _ := os.ReadFile("/proc/cpuinfo") // Without it the description is shorter.
	model := "an unknown processor"
	if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(content); m != nil {
		model = string(m[1])
	}
	return fmt.Sprintf("%d processors (%s)", strings.Count(string(content), "processor\t"), strings.TrimSpace(model))
}

// LoadAverage returns the number of tasks that wanted a processor in the last minute; more than a
// few tenths spoil the figures.
func LoadAverage() string {
	content, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(content), " ")
	return first
}

// TakeProcessors moves this process away from the first of its processors. It returns that
// processor, and how many are left.
func TakeProcessors() (first string, left int, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", 0, err
	}
	cpus, err := Processors(string(status))
	if err != nil {
		return "", 0, err
	}
	if len(cpus) < 2 {
		return "", 0, errors.New("the benchmarks need two processors: Envoy has the first, the load the second")
	}
	rest := strings.Join(cpus[1:], ",")
	output, err := exec.Command("taskset", "--all-tasks", "--cpu-list", "--pid", rest,
		strconv.Itoa(os.Getpid())).CombinedOutput()
	if err != nil {
		return "", 0, fmt.Errorf("taskset cannot pin the load to processors %s: %w: %s", rest, err, output)
	}
	return cpus[0], len(cpus) - 1, nil
}

// Processors reads the list of processors in a process's status, like 0,2-3.
func Processors(status string) (all []string, err error) {
	_, list, found := strings.Cut(status, "Cpus_allowed_list:")
	if !found {
		return nil, errors.New("/proc/self/status does not say which processors there are")
	}
	list, _, _ = strings.Cut(list, "\n")
	for _, span := range strings.Split(strings.TrimSpace(list), ",") {
		low, high, isSpan := strings.Cut(span, "-")
		if !isSpan {
			high = low
		}
		from, err1 := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("processors %q: %w", list, err)
		}
		for ; from <= to; from++ {
			all = append(all, strconv.Itoa(from))
		}
	}
	return all, nil
}
