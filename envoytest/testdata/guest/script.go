package main

import (
	"strconv"
	"strings"
)

var statusNames = []string{
	"ok", "not-found", "bad-argument", "serialization-failure", "parse-failure", "bad-expression", "invalid-memory-access",
	"empty", "cas-mismatch", "result-mismatch", "internal-failure", "broken-connection", "unimplemented",
}

// command runs with its arguments and returns what to log.
type command func(args []string) string

var commands = map[string]command{
	// shared-get KEY; shared-set KEY VALUE CAS
	// store KEY SCRIPT, where "&" stands for a semicolon; shared-add KEY
	"store": store, "shared-get": sharedGet, "shared-set": sharedSet, "shared-add": sharedAdd,
	// header-get MAP NAME, headers MAP, header-add MAP NAME VALUE, header-replace, header-remove, headers-set MAP N=V...
	"header-get": headerGet, "headers": headers, "header-add": headerAdd, "header-replace": headerReplace,
	"header-remove": headerRemove, "headers-set": headersSet,
	// reply CODE DETAILS BODY GRPC N=V...; resume STREAM; close STREAM; effective CONTEXT
	"reply": reply, "resume": resume, "close": closeStream, "effective": effective,
	// call CLUSTER TIMEOUT N=V...
	"call": httpCall,
	// define KIND NAME; increment ID N; record ID N; metric ID
	"define": define, "increment": increment, "record": record, "metric": metric,
	// property A/B/C; property-set NAME VALUE; buffer KIND START LENGTH
	"property": property, "property-set": propertySet, "buffer": bufferBytes,
	// time; clock ID; random N; env NAME; tick MS; done; allocs; in-alloc CALL; log LEVEL TEXT
	// self KEY puts the id of the calling context into shared data
	"self": self,
	"time": wallTime, "clock": clock, "random": random, "env": env, "tick": tick, "done": done,
	"allocs": allocs, "in-alloc": setInAlloc, "log": logAt,
	// print TEXT goes to stdout, fail TEXT panics, exit is proc_exit
	"print": printText, "fail": fail, "exit": exit,
}

// contextID is the context whose callback runs.
var contextID uint32

// run executes a script and returns its last "return N", or otherwise. An argument "@KEY" stands for the shared data KEY.
func run(callback, script string, otherwise uint32) uint32 {
	for _, line := range strings.Split(script, ";") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] == "return" {
			otherwise = parse(words[1])
			continue
		}
		if words[0] == "eval" { // eval KEY: a script that stands in shared data
			value, _, status := getShared(words[1])
			if status == 0 {
				otherwise = run(callback, value, otherwise)
			}
			continue
		}
		do, ok := commands[words[0]]
		if !ok {
			panic("unknown command " + words[0])
		}
		shown := strings.Join(words, " ")
		for i, word := range words[1:] {
			if key, ok := strings.CutPrefix(word, "@"); ok {
				words[i+1], _, _ = getShared(key)
			}
		}
		logLine(callback + ": " + shown + " = " + do(words[1:]))
	}
	return otherwise
}

func logLine(s string) { proxyLog(2, data(s), uint32(len(s))) }

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// parse reads a number; a word of any other kind traps, which shows in the test.
func parse(s string) uint32 {
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		panic("not a number: " + s)
	}
	return uint32(n)
}

func status(n uint32) string { return statusNames[n] }

func with(n uint32, value string) string {
	if n != 0 {
		return status(n)
	}
	return "ok " + value
}

func getShared(key string) (value string, cas, status uint32) {
	var ptr, size uint32
	status = proxyGetSharedData(data(key), uint32(len(key)), &ptr, &size, &cas)
	return text(ptr, size), cas, status
}

func sharedGet(a []string) string {
	value, cas, st := getShared(a[0])
	return with(st, value+" cas "+number(cas))
}

func sharedSet(a []string) string {
	value := a[1]
	if value == "-" {
		value = ""
	}
	return status(proxySetSharedData(data(a[0]), uint32(len(a[0])), data(value), uint32(len(value)), parse(a[2])))
}

func store(a []string) string {
	script := strings.ReplaceAll(strings.Join(a[1:], " "), "&", ";")
	return status(proxySetSharedData(data(a[0]), uint32(len(a[0])), data(script), uint32(len(script)), 0))
}

// sharedAdd adds one to the number under a key by compare-and-swap, however often that takes.
func sharedAdd(a []string) string {
	for {
		value, cas, st := getShared(a[0])
		n := uint32(0)
		if st == 0 {
			n = parse(value)
		} else {
			cas = 0xFFFFFFFF // inserts only if the key is still absent
		}
		next := number(n + 1)
		if proxySetSharedData(data(a[0]), uint32(len(a[0])), data(next), uint32(len(next)), cas) == 0 {
			return "ok " + next
		}
	}
}

func logAt(a []string) string {
	message := strings.Join(a[1:], " ")
	return status(proxyLog(parse(a[0]), data(message), uint32(len(message))))
}

func property(a []string) string {
	path := strings.ReplaceAll(a[0], "/", "\x00")
	var ptr, size uint32
	st := proxyGetProperty(data(path), uint32(len(path)), &ptr, &size)
	return with(st, strconv.Quote(text(ptr, size)))
}

func propertySet(a []string) string {
	return status(proxySetProperty(data(a[0]), uint32(len(a[0])), data(a[1]), uint32(len(a[1]))))
}

func bufferBytes(a []string) string {
	var ptr, size uint32
	st := proxyGetBufferBytes(parse(a[0]), parse(a[1]), parse(a[2]), &ptr, &size)
	return with(st, strconv.Quote(text(ptr, size)))
}

func define(a []string) string {
	var id uint32
	st := proxyDefineMetric(parse(a[0]), data(a[1]), uint32(len(a[1])), &id)
	return with(st, number(id))
}

func increment(a []string) string {
	n, _ := strconv.ParseInt(a[1], 10, 64)
	return status(proxyIncrementMetric(parse(a[0]), n))
}

func record(a []string) string { return status(proxyRecordMetric(parse(a[0]), uint64(parse(a[1])))) }

func metric(a []string) string {
	var value uint64
	st := proxyGetMetric(parse(a[0]), &value)
	return with(st, strconv.FormatUint(value, 10))
}

func self(a []string) string {
	id := number(contextID)
	return with(proxySetSharedData(data(a[0]), uint32(len(a[0])), data(id), uint32(len(id)), 0), id)
}

func wallTime([]string) string {
	var t uint64
	st := proxyGetCurrentTime(&t)
	return with(st, strconv.FormatUint(t, 10))
}

func clock(a []string) string {
	var t uint64
	errno := clockTimeGet(parse(a[0]), 0, &t)
	return "errno " + number(errno) + " " + strconv.FormatUint(t, 10)
}

func random(a []string) string {
	b := make([]byte, parse(a[0])+1)
	errno := randomGet(&b[0], parse(a[0]))
	sum := uint32(0)
	for _, x := range b {
		sum = sum*31 + uint32(x)
	}
	return "errno " + number(errno) + " hash " + number(sum)
}

func env(a []string) string { return getenv(a[0]) }

func tick(a []string) string { return status(proxySetTickPeriod(parse(a[0]))) }

func done([]string) string { return status(proxyDone()) }

func allocs([]string) string {
	return "malloc " + number(mallocs) + " proxy_on_memory_allocate " + number(allocates)
}

func setInAlloc(a []string) string {
	inAlloc = a[0]
	return "ok"
}

func printText(a []string) string {
	println(strings.Join(a, " "))
	return "ok"
}

func exit([]string) string {
	procExit(1)
	return "returned"
}

func fail(a []string) string { panic(strings.Join(a, " ")) }
