//go:build tinygo

package host

import (
	"unsafe"

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"

	"github.com/weir-proxy/weir/shared/quota"
)

// The header maps.
const (
	requestHeaders  = 0
	responseHeaders = 2
	// responseTrailers are available in their own callback only.
	responseTrailers = 3
	callResponse     = 6
	streamRequest    = 0
	metricCounter    = 0
	metricGauge      = 1
	metricHistogram  = 2
	monotonic        = 1
	wallClock        = 0
	nanosPerMicro    = 1000
	impossibleCAS    = 0xffffffff
	statusOK         = 0
	clockResolution  = 1
	levelWarn        = 3
	levelError       = 4
	levelInfo        = 2
)

func firstByte(b []byte) *byte {
	if len(b) == 0 {
		return nil
	}
	return &b[0]
}

func textArgs(s string) (*byte, uint32) { return unsafe.StringData(s), uint32(len(s)) }

// Clock is the host's monotonic clock, which cannot be set.
type Clock struct{}

// Now returns the time since a start that all VMs of the machine share.
func (Clock) Now() quota.Instant { return quota.Instant(readClock(monotonic)) }

// Wall returns the Unix time in microseconds, only for values that leave the node.
func (Clock) Wall() int64 { return readClock(wallClock) }

func readClock(id uint32) int64 {
	var nanos uint64
	clockTimeGet(id, clockResolution, &nanos)
	return int64(nanos / nanosPerMicro)
}

// Random fills b with random bytes.
func Random(b []byte) { randomGet(firstByte(b), uint32(len(b))) }

// RequestHeaders returns all request headers in the ABI's encoding, valid until the next callback.
func RequestHeaders() []byte { return readPairs(requestHeaders) }

// ResponseHeaders returns all response headers in the ABI's encoding, valid until the next
// callback.
func ResponseHeaders() []byte { return readPairs(responseHeaders) }

// ResponseTrailers returns all trailers of the response, like ResponseHeaders.
func ResponseTrailers() []byte { return readPairs(responseTrailers) }

func readPairs(of uint32) []byte {
	var data uintptr
	var size uint32
	if proxyGetHeaderMapPairs(of, &data, &size) != statusOK {
		return nil
	}
	return bytesAt(data, size)
}

// ResponseHeader returns the first line of one response header, nil if there is none, valid until
// the next callback.
func ResponseHeader(name string) []byte { return readHeader(responseHeaders, name) }

// ResponseTrailer returns the first line of a trailer, like ResponseHeader.
func ResponseTrailer(name string) []byte { return readHeader(responseTrailers, name) }

//go:noinline
func readHeader(of uint32, name string) []byte {
	var data uintptr
	var size uint32
	key, n := textArgs(name)
	if proxyGetHeaderMapValue(of, key, n, &data, &size) != statusOK {
		return nil
	}
	return bytesAt(data, size)
}

// SetResponseHeader sets a response header.
func SetResponseHeader(name string, value []byte) {
	key, n := textArgs(name)
	proxyReplaceHeaderMapValue(responseHeaders, key, n, firstByte(value), uint32(len(value)))
}

// RemoveResponseHeader removes all lines of a response header.
func RemoveResponseHeader(name []byte) {
	proxyRemoveHeaderMapValue(responseHeaders, firstByte(name), uint32(len(name)))
}

// RemoveRequestHeader removes a request header, so that the upstream does not see it.
func RemoveRequestHeader(name []byte) {
	proxyRemoveHeaderMapValue(requestHeaders, firstByte(name), uint32(len(name)))
}

// Property returns an Envoy attribute, nil if there is none, valid until the next callback. The
// parts of path are joined by NUL.
func Property(path string) []byte {
	return Properties{}.Property(unsafe.Slice(unsafe.StringData(path), len(path)))
}

// Properties are Envoy's attributes of the current request.
type Properties struct{}

// Property implements match.Properties.
func (Properties) Property(path []byte) []byte {
	var data uintptr
	var size uint32
	if proxyGetProperty(firstByte(path), uint32(len(path)), &data, &size) != statusOK {
		return nil
	}
	return bytesAt(data, size)
}

// SetFilterState publishes a value for access logs, as wasm.NAME.
func SetFilterState(name string, value []byte) {
	key, n := textArgs(name)
	proxySetProperty(key, n, firstByte(value), uint32(len(value)))
}

// Reply answers the request of the effective context. Headers are in the ABI's encoding; details
// show in access logs.
func Reply(status uint32, details, headers, body []byte, grpcStatus int32) bool {
	return proxySendLocalResponse(status, firstByte(details), uint32(len(details)), firstByte(body), uint32(len(body)),
		firstByte(headers), uint32(len(headers)), grpcStatus) == statusOK
}

// Select makes stream the target of Resume and Reply. It reports false if the stream is gone; then
// neither must be called, because the previous stream is still selected.
func Select(stream uint32) bool { return proxySetEffectiveContext(stream) == statusOK }

// Resume continues the selected stream's request.
func Resume() { proxyContinueStream(streamRequest) }

// SharedData is Envoy's shared data.
type SharedData struct{}

// Get implements shareddata.Data.
func (SharedData) Get(key []byte) (value []byte, cas uint32, found bool) {
	var data uintptr
	var size uint32
	if proxyGetSharedData(firstByte(key), uint32(len(key)), &data, &size, &cas) != statusOK {
		return nil, 0, false
	}
	return bytesAt(data, size), cas, true
}

// PutIfAbsent implements shareddata.Data. Envoy inserts under any cas but compares it if the key
// exists. So a cas that no value ever has makes a true put-if-absent; 0 would overwrite.
func (SharedData) PutIfAbsent(key, value []byte) bool {
	const cas = impossibleCAS
	return proxySetSharedData(firstByte(key), uint32(len(key)), firstByte(value), uint32(len(value)), cas) == statusOK
}

// CompareAndSwap implements shareddata.Data.
func (SharedData) CompareAndSwap(key, value []byte, cas uint32) bool {
	return proxySetSharedData(firstByte(key), uint32(len(key)), firstByte(value), uint32(len(value)), cas) == statusOK
}

// Put overwrites. It is only for values whose last writer is right.
func (SharedData) Put(key, value []byte) {
	proxySetSharedData(firstByte(key), uint32(len(key)), firstByte(value), uint32(len(value)), 0)
}

// Counter is an Envoy counter. The zero value counts nothing.
type Counter struct {
	id      uint32
	defined bool
}

// NewCounter defines a counter. A VM defines each name once.
func NewCounter(name string) Counter { return defineMetric(metricCounter, name) }

//go:noinline
func defineMetric(kind uint32, name string) (c Counter) {
	key, n := textArgs(name)
	c.defined = proxyDefineMetric(kind, key, n, &c.id) == statusOK
	return c
}

// Add counts n. It makes no call for 0, which Envoy refuses.
func (c Counter) Add(n uint64) {
	if c.defined && n > 0 {
		proxyIncrementMetric(c.id, int64(n))
	}
}

// Gauge is an Envoy gauge, which all VMs of the process share. The zero value shows nothing.
type Gauge struct{ metric Counter }

// NewGauge defines a gauge. A VM defines each name once.
func NewGauge(name string) Gauge { return Gauge{defineMetric(metricGauge, name)} }

// Add changes the gauge by n, which may be negative. It is for sums to which each VM adds its part.
func (g Gauge) Add(n int64) {
	if g.metric.defined && n != 0 {
		proxyIncrementMetric(g.metric.id, n)
	}
}

// Set sets the gauge. It is for values that one VM alone knows.
func (g Gauge) Set(n uint64) {
	if g.metric.defined {
		proxyRecordMetric(g.metric.id, n)
	}
}

// Histogram is an Envoy histogram. The zero value records nothing.
type Histogram struct{ metric Counter }

// NewHistogram defines a histogram. A VM defines each name once.
func NewHistogram(name string) Histogram { return Histogram{defineMetric(metricHistogram, name)} }

// Record counts one value.
func (h Histogram) Record(value uint64) {
	if h.metric.defined {
		proxyRecordMetric(h.metric.id, value)
	}
}

// SetTick sets the tick period.
func SetTick(period quota.Span) { proxySetTickPeriod(uint32(period / quota.Millisecond)) }

// Info, Warn and Error write to Envoy's log.
func Info(message string) { writeLog(levelInfo, message) }

// Warn writes a warning.
func Warn(message string) { writeLog(levelWarn, message) }

// Error writes an error.
func Error(message string) { writeLog(levelError, message) }

func writeLog(level uint32, message string) {
	data, n := textArgs(message)
	proxyLog(level, data, n)
}

// sdkQueueReady calls the SDK's own callback from inside: only so a plugin context becomes the
// SDK's active context.
//
//go:linkname sdkQueueReady proxy_on_queue_ready
func sdkQueueReady(plugin, queue uint32)

var asPlugin func()

// OnQueueReady must be called by the plugin context's OnQueueReady. No queue is ever registered, so
// Envoy never calls it.
func OnQueueReady() { asPlugin() }

// Call sends a request to a cluster for a plugin context. Done is called once, later, unless an
// error is returned; its status is 0 if no answer came. Its body is valid until the next callback.
//
// The SDK drops the answer to a call whose caller is a stream that has ended, although other
// requests may wait for it. So the plugin context is always the caller, even from a stream's
// callback.
func Call(
	plugin uint32, cluster string, headers [][2]string, body []byte, timeout quota.Span,
	done func(status int, body []byte),
) error {
	var err error
	asPlugin = func() {
		_, err = proxywasm.DispatchHttpCall(cluster, headers, body, nil, uint32(timeout/quota.Millisecond),
			func(numHeaders, bodySize, _ int) {
				Begin()
				if numHeaders == 0 {
					done(0, nil)
					return
				}
				var answer []byte
				if bodySize > 0 {
					answer, _ = proxywasm.GetHttpCallResponseBody(0, bodySize)
				}
				done(callStatus(), answer)
			})
	}
	sdkQueueReady(plugin, 0)
	return err
}

// CallHeader returns a header of the current answer, nil if there is none. It is valid until the
// next callback.
func CallHeader(name string) []byte { return readHeader(callResponse, name) }

// callStatus returns the status of the current answer, 0 if there is none.
func callStatus() int {
	status := 0
	for _, c := range readHeader(callResponse, ":status") {
		if c < '0' || c > '9' {
			return 0
		}
		status = status*10 + int(c-'0')
	}
	return status
}
