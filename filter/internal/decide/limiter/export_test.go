package limiter

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Refuse ends a request that its first hit refuses for a reason.
func (l *Limiter) Refuse(req *Request, reason policy.Reason, now quota.Instant) Status {
	return l.refuseRequest(req, 0, reason, now)
}
