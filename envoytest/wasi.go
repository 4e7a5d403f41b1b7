package envoytest

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
)

// Error numbers of WASI.
const (
	errnoSuccess = 0
	errnoBadf    = 8
	errnoFault   = 21
	errnoInval   = 28
	errnoNoent   = 44
	errnoNosys   = 52
	errnoNotdir  = 20
	errnoNotsup  = 58
)

// maxRandom is the most random bytes a guest gets at once.
const maxRandom = 64 << 10

// wasiFuncs lists the host's functions of WASI. There are no files, so the functions about files
// only refuse.
func wasiFuncs() []hostFunc {
	wasi := func(name, params string, allowed phase, call func(v *vm, a []uint64) uint32) hostFunc {
		return hostFunc{module: "wasi_snapshot_preview1", name: name, params: params, results: "i", allowed: allowed,
			call: call}
	}
	funcs := []hostFunc{
		wasi("clock_time_get", "iIi", phaseAllocate, (*vm).wasiClockTime),
		wasi("clock_res_get", "ii", phaseInitialize, (*vm).wasiClockResolution),
		wasi("random_get", "ii", phaseInitialize, (*vm).wasiRandom),
		wasi("fd_write", "iiii", phaseAllocate, (*vm).wasiWrite),
		wasi("environ_get", "ii", phaseInitialize, (*vm).wasiEnviron),
		wasi("environ_sizes_get", "ii", phaseInitialize, (*vm).wasiEnvironSizes),
		wasi("args_get", "ii", phaseInitialize, answer(errnoSuccess)),
		wasi("args_sizes_get", "ii", phaseInitialize, (*vm).wasiArgsSizes),
		wasi("poll_oneoff", "iiii", phaseAllocate, (*vm).wasiPoll),
		wasi("fd_fdstat_get", "ii", phaseInitialize, (*vm).wasiFdstat),
		wasi("fd_fdstat_set_flags", "ii", phaseInitialize, answer(errnoNosys)),
		wasi("fd_filestat_get", "ii", phaseInitialize, answer(errnoBadf)),
		wasi("fd_prestat_get", "ii", phaseInitialize, answer(errnoBadf)),
		wasi("fd_prestat_dir_name", "iii", phaseInitialize, answer(errnoNosys)),
		wasi("fd_pread", "iiIi", phaseInitialize, answer(errnoNosys)),
		wasi("fd_readdir", "iiiIi", phaseInitialize, answer(errnoNotdir)),
		wasi("path_filestat_get", "iiiii", phaseInitialize, answer(errnoNotsup)),
		wasi("path_create_directory", "iii", phaseInitialize, answer(errnoNotsup)),
		wasi("path_remove_directory", "iii", phaseInitialize, answer(errnoNotsup)),
		wasi("path_rename", "iiiiii", phaseInitialize, answer(errnoNotsup)),
		wasi("path_unlink_file", "iii", phaseInitialize, answer(errnoNotsup)),
		wasi("path_readlink", "iiiiii", phaseInitialize, answer(errnoNotsup)),
		// Not even these may be called before the guest has started.
		wasi("fd_read", "iiii", phaseRun, answer(errnoNosys)),
		wasi("fd_seek", "iIii", phaseRun, answer(errnoSuccess)),
		wasi("fd_close", "i", phaseRun, answer(errnoSuccess)),
		wasi("path_open", "iiiiiIIii", phaseRun, answer(errnoNoent)),
		wasi("sched_yield", "", phaseRun, answer(errnoSuccess)),
	}
	return append(funcs, hostFunc{
		module: "wasi_snapshot_preview1", name: "proc_exit", params: "i",
		call: func(v *vm, _ []uint64) uint32 { // it returns, to a guest that does not expect it
			v.h.addLog(v.number, Error, "Wasm VM failed wasi_unstable proc_exit")
			return 0
		},
	})
}

func answer(errno uint32) func(*vm, []uint64) uint32 {
	return func(*vm, []uint64) uint32 { return errno }
}

// errno turns the result of a write to guest memory into WASI's.
func errno(st status) uint32 {
	if st != statusOK {
		return errnoFault
	}
	return errnoSuccess
}

func (v *vm) wasiClockTime(a []uint64) uint32 {
	switch uint32(a[0]) {
	case 0:
		return errno(v.put64(a[2], uint64(v.h.Now().UnixNano())))
	case 1:
		return errno(v.put64(a[2], uint64(v.h.Monotonic())))
	}
	return errnoNotsup
}

func (v *vm) wasiClockResolution(a []uint64) uint32 {
	if uint32(a[0]) > 1 {
		return errnoNotsup
	}
	return errno(v.put64(a[1], 1))
}

func (v *vm) wasiRandom(a []uint64) uint32 {
	if uint32(a[1]) > maxRandom {
		return errnoInval
	}
	view, ok := v.bytes(a[0], a[1])
	if !ok {
		return errnoFault
	}
	v.rand.Read(view) // never fails
	return errnoSuccess
}

// wasiWrite logs the text for stdout at level info and the text for stderr at level error, without
// its last newline.
func (v *vm) wasiWrite(a []uint64) uint32 {
	level := Info
	switch uint32(a[0]) {
	case 1:
	case 2:
		level = Error
	default:
		return errnoBadf
	}
	var text strings.Builder
	for i := range a[2] {
		vec, ok := v.bytes(a[1]+8*i, 8)
		if !ok {
			return errnoFault
		}
		part, ok := v.bytes(uint64(binary.LittleEndian.Uint32(vec)), uint64(binary.LittleEndian.Uint32(vec[4:])))
		if !ok {
			return errnoFault
		}
		text.Write(part)
	}
	if text.Len() > 0 {
		v.h.addLog(v.number, level, strings.TrimSuffix(text.String(), "\n"))
	}
	return errno(v.put32(a[3], uint32(text.Len())))
}

// environ returns the environment in WASI's form, in the order of the names.
func (v *vm) environ() []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(v.h.opt.Env)) {
		list = append(list, name+"="+v.h.opt.Env[name]+"\x00")
	}
	return list
}

func (v *vm) wasiEnviron(a []uint64) uint32 {
	array, buffer := a[0], a[1]
	for _, s := range v.environ() {
		if !v.mem.WriteUint32Le(uint32(array), uint32(buffer)) || !v.mem.WriteString(uint32(buffer), s) {
			return errnoFault
		}
		array += 4
		buffer += uint64(len(s))
	}
	return errnoSuccess
}

func (v *vm) wasiEnvironSizes(a []uint64) uint32 {
	list := v.environ()
	if e := errno(v.put32(a[0], uint32(len(list)))); e != errnoSuccess {
		return e
	}
	return errno(v.put32(a[1], uint32(len(strings.Join(list, "")))))
}

func (v *vm) wasiArgsSizes(a []uint64) uint32 {
	if e := errno(v.put32(a[0], 0)); e != errnoSuccess {
		return e
	}
	return errno(v.put32(a[1], 0))
}

func (v *vm) wasiPoll(a []uint64) uint32 { return errno(v.put32(a[3], 0)) }

// wasiFdstat says of stdout and stderr that they can be written.
func (v *vm) wasiFdstat(a []uint64) uint32 {
	const rightWrite = 64
	if fd := uint32(a[0]); fd != 1 && fd != 2 {
		return errnoBadf
	}
	var stat [24]byte
	binary.LittleEndian.PutUint64(stat[8:], rightWrite)
	if !v.mem.Write(uint32(a[1]), stat[:]) {
		return errnoFault
	}
	return errnoSuccess
}
