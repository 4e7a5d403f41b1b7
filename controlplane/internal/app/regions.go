package app

import (
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/regions"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
	"github.com/weir-proxy/weir/shared/quota"
)

// join makes the control plane one of several regions, if the settings say so.
func (a *App) join(s *settings.Regions, sets *policies.Service) (err error) {
	if s == nil {
		return nil
	}
	if a.document, err = redisstore.Open(s.URL, a.log); err != nil {
		return err
	}
	lasting := func(name string, part regions.Part) quota.Span {
		if current, _ := sets.Current(); current != nil {
			if p, ok := current.Policy(name); ok {
				return part.Lasting(p)
			}
		}
		return quota.MaxWindow // Of a policy that is gone nothing is known but that.
	}
	a.regions = regions.New(s.Config, a.store.Region(), a.document.Document(), lasting, a.log, time.Now)
	a.log.Info("sharing the quotas with other regions", "region", s.Region, "weights", s.Weights)
	return nil
}
