package lease

import "github.com/weir-proxy/weir/shared/quota"

// scarcePerWindow: a window is scarce where it can hold at most this part of its quota.
const scarcePerWindow = 20

// keepShare returns how many of the available tokens a node may hold: the tokens that the limit
// earns in the time of a lease, and a quarter of the bucket. In a bucket that several nodes share
// it is half of the first, and half of a quarter of the node's even share: a burst that continues
// at other nodes lacks the tokens that this node holds. If the bucket could not serve all nodes
// with the number that this node wants, it gets half of its even share. So the last tokens do not
// go to nodes that may not need them. No node gets fewer tokens than a request costs.
func keepShare(ask Ask, available int64) int64 {
	keep, nodes := max(ask.Keep, 0), max(ask.Nodes, 1)
	earned := ask.Params.Earned(ask.TTL())
	share := (available+3)/4 + earned
	if nodes > 1 {
		share = available/(8*nodes) + earned/2
	}
	if nodes > 1 && keep > available/nodes {
		share = min(share, available/(2*nodes))
	}
	if keep = min(keep, share, available); keep < ask.Cost {
		return 0
	}
	return keep
}

// scarceFor returns the time in which a scarce bucket earns the tokens that it holds at most.
// Tokens that rationing leaves unused remain in a token bucket; in a window they are lost each
// time.
func scarceFor(ask Ask, g Grant, backOff quota.Span) quota.Span {
	scarce := backOff * scarcePerBackOff
	if g.FullAfter > 0 {
		scarce = min(scarce, ask.Params.Window()/scarcePerWindow)
	}
	return scarce
}
