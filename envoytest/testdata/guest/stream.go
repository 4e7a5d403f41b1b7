package main

import (
	"encoding/binary"
	"strings"
)

// encode turns arguments like name=value into the ABI's form of a header block.
func encode(args []string) []byte {
	block := binary.LittleEndian.AppendUint32(nil, uint32(len(args)))
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		block = binary.LittleEndian.AppendUint32(block, uint32(len(name)))
		block = binary.LittleEndian.AppendUint32(block, uint32(len(value)))
	}
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		block = append(append(block, name...), 0)
		block = append(append(block, value...), 0)
	}
	return block
}

// decode shows a header block as name=value, separated by bars.
func decode(block string) string {
	if block == "" {
		return ""
	}
	word := func(i int) int { return int(binary.LittleEndian.Uint32([]byte(block[4*i:]))) }
	count := word(0)
	rest := block[4+8*count:]
	var shown []string
	for i := range count {
		name := rest[:word(1+2*i)]
		rest = rest[len(name)+1:]
		value := rest[:word(2+2*i)]
		rest = rest[len(value)+1:]
		if !strings.HasPrefix(name, "x-on-") {
			shown = append(shown, name+"="+value)
		}
	}
	if rest != "" {
		panic("bytes after the last pair")
	}
	return strings.Join(shown, "|")
}

func headerGet(a []string) string {
	var ptr, size uint32
	st := proxyGetHeaderMapValue(parse(a[0]), data(a[1]), uint32(len(a[1])), &ptr, &size)
	return with(st, text(ptr, size))
}

func headers(a []string) string {
	var ptr, size uint32
	st := proxyGetHeaderMapPairs(parse(a[0]), &ptr, &size)
	return with(st, decode(text(ptr, size)))
}

func headerAdd(a []string) string {
	return status(proxyAddHeaderMapValue(parse(a[0]), data(a[1]), uint32(len(a[1])), data(a[2]), uint32(len(a[2]))))
}

func headerReplace(a []string) string {
	return status(proxyReplaceHeaderMapValue(parse(a[0]), data(a[1]), uint32(len(a[1])), data(a[2]), uint32(len(a[2]))))
}

func headerRemove(a []string) string {
	return status(proxyRemoveHeaderMapValue(parse(a[0]), data(a[1]), uint32(len(a[1]))))
}

func headersSet(a []string) string {
	block := encode(a[1:])
	return status(proxySetHeaderMapPairs(parse(a[0]), &block[0], uint32(len(block))))
}

// reply CODE DETAILS BODY GRPC N=V...; "_" in DETAILS is a space, "-" is nothing; GRPC -1 is none.
func reply(a []string) string {
	details, body := strings.ReplaceAll(a[1], "_", " "), a[2]
	if a[1] == "-" {
		details = ""
	}
	if body == "-" {
		body = ""
	}
	grpc := int32(-1)
	if a[3] != "-1" {
		grpc = int32(parse(a[3]))
	}
	block := encode(a[4:])
	return status(proxySendLocalResponse(parse(a[0]), data(details), uint32(len(details)), data(body), uint32(len(body)),
		&block[0], uint32(len(block)), grpc))
}

func resume(a []string) string { return status(proxyContinueStream(parse(a[0]))) }

func closeStream(a []string) string { return status(proxyCloseStream(parse(a[0]))) }

func effective(a []string) string { return status(proxySetEffectiveContext(parse(a[0]))) }

func httpCall(a []string) string {
	block := encode(a[2:])
	body := "ping"
	var id uint32
	st := proxyHTTPCall(data(a[0]), uint32(len(a[0])), &block[0], uint32(len(block)), data(body), uint32(len(body)),
		nil, 0, parse(a[1]), &id)
	return status(st) + " " + number(id)
}
