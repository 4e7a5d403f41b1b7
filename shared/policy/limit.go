package policy

import (
	"github.com/weir-proxy/weir/shared/quota"
)

// limits reads one limit or a list of them, which a policy tells apart by their windows.
func (r *reader) limits(path string, n Node, p *Policy) {
	if n.Kind != List {
		if l, ok := r.limit(path, n); ok {
			p.Limits = append(p.Limits, l)
		}
		return
	}
	r.present(path, len(n.Items) > 0, "is empty: write at least one limit")
	r.longList(path, n, MaxLimits, func(path string, n Node) {
		l, ok := r.limit(path, n)
		if !ok {
			return
		}
		for _, other := range p.Limits {
			if other.Window == l.Window {
				r.problem(path+".window", "is that of another limit in the list: the stricter of the two is enough")
			}
		}
		p.Limits = append(p.Limits, l)
	})
}

func (r *reader) limit(path string, n Node) (l Limit, good bool) {
	if n.Kind != Map {
		r.wrongKind(path, n, "a mapping like {quota: 100, window: 1m}")
		return l, false
	}
	var burst int64
	good = true
	r.object(path, n,
		field{"quota", func(path string, n Node) { good = r.integer(path, n, 1, quota.MaxUnits, &l.Quota) && good }},
		field{"window", func(path string, n Node) {
			good = r.span(path, n, quota.Second, quota.MaxWindow, &l.Window) && good
		}},
		field{"burst", func(path string, n Node) { good = r.integer(path, n, 1, quota.MaxUnits, &burst) && good }},
	)
	for _, key := range []string{"quota", "window"} {
		r.required(path, n, key, "")
		good = good && contains(n.Keys, key)
	}
	if !good {
		return l, false
	}
	if burst == 0 {
		burst = l.Quota
	}
	params, err := quota.NewParams(l.Quota, l.Window, burst)
	if err != nil {
		r.problem(path, err.Error())
		return l, false
	}
	l.Params = params
	return l, true
}

func (r *reader) cost(path string, n Node, c *Cost) {
	if n.Kind == Number {
		r.integer(path, n, 0, MaxCost, &c.Fixed)
		return
	}
	if n.Kind != Map {
		r.wrongKind(path, n, "a whole number or a mapping like {header: x-cost, max: 50, invalid: 1}")
		return
	}
	c.Invalid = 1
	r.object(path, n,
		field{"header", func(path string, n Node) { c.Header, _ = r.headerName(path, n) }},
		field{"max", func(path string, n Node) { r.integer(path, n, 1, MaxCost, &c.Max) }},
		field{"invalid", func(path string, n Node) {
			if n.Kind == String && n.Text == "deny" {
				c.DenyInvalid = true
				return
			}
			r.integer(path, n, 0, MaxCost, &c.Invalid)
		}},
	)
	r.required(path, n, "header", ": name the header that holds the cost")
	r.required(path, n, "max", ": say the most that one request may cost")
}
