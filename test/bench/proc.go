package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is what the kernel counts processor time in, for everybody outside.
const ticksPerSecond = 100

// work is processor time: of Envoy, of the contestant's other processes, of this process, and of everybody.
type work struct{ envoy, others, self, all time.Duration }

// foreign is what nobody has used who takes part.
func (w work) foreign() time.Duration { return w.all - w.envoy - w.others - w.self }

func (w *world) work() (n work, err error) {
	if n.envoy, err = processorTime(w.envoy.PID()); err != nil {
		return n, err
	}
	for _, p := range w.others {
		t, err := processorTime(p.PID())
		if err != nil {
			return n, err
		}
		n.others += t
	}
	if n.self, err = processorTime(os.Getpid()); err != nil {
		return n, err
	}
	n.all, err = everybodysTime()
	return n, err
}

// everybodysTime is what all processes of the machine have used since it started.
func everybodysTime() (time.Duration, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	// The first line sums all processors: user, nice, system, and then what is no process's.
	var name string
	var user, nice, system int
	if _, err := fmt.Sscan(string(content), &name, &user, &nice, &system); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return time.Duration(user+nice+system) * time.Second / ticksPerSecond, nil
}

// processorTime is what a process and its ended children have used.
func processorTime(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the name in brackets, which may hold anything. The times are fields 14 to 17.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	if len(fields) < 15 {
		return 0, fmt.Errorf("/proc/%d/stat is %q", pid, content)
	}
	ticks := 0
	for _, field := range fields[11:15] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat is %q: %w", pid, content, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

func (w *world) resident() (envoy, others float64, err error) {
	if envoy, err = residentOf(w.envoy.PID()); err != nil {
		return 0, 0, err
	}
	for _, p := range w.others {
		mb, err := residentOf(p.PID())
		if err != nil {
			return 0, 0, err
		}
		others += mb
	}
	return envoy, others, nil
}

func residentOf(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var total, resident int
	if _, err := fmt.Sscan(string(content), &total, &resident); err != nil {
		return 0, fmt.Errorf("/proc/%d/statm is %q: %w", pid, content, err)
	}
	return rounded(float64(resident*os.Getpagesize()) / 1e6), nil
}
