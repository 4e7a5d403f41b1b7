package envoytest

// status is the result of a host call, for the guest.
type status uint32

const (
	statusOK                   status = 0
	statusNotFound             status = 1
	statusBadArgument          status = 2
	statusSerializationFailure status = 3
	statusInvalidMemoryAccess  status = 6
	statusEmpty                status = 7
	statusCasMismatch          status = 8
	statusInternalFailure      status = 10
	statusUnimplemented        status = 12
)

// Header maps a guest can name.
const (
	mapRequestHeaders = iota
	mapRequestTrailers
	mapResponseHeaders
	mapResponseTrailers
	mapGrpcInitialMetadata
	mapGrpcTrailingMetadata
	mapCallResponseHeaders
	mapCallResponseTrailers
	mapCount
)

// Buffers a guest can name.
const (
	bufferRequestBody = iota
	bufferResponseBody
	bufferDownstreamData
	bufferUpstreamData
	bufferCallResponseBody
	bufferGrpcMessage
	bufferVMConfiguration
	bufferPluginConfiguration
	bufferCallData
	bufferCount
)

// Streams a guest can continue or close.
const (
	streamRequest = iota
	streamResponse
	streamDownstream
	streamUpstream
	streamCount
)

// Results of a header, body or trailer callback. Any other value stops, except 2 from a header
// callback, which continues.
const (
	filterContinue      = 0
	filterHeadersIgnore = 2
)
