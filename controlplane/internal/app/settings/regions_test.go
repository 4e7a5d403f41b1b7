package settings_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
)

func TestRegions(t *testing.T) {
	f := valid(t)
	if s, err := f.Resolve(); err != nil || s.Regions != nil {
		t.Errorf("without any: %+v, %v", s.Regions, err)
	}
	whole := settings.RegionFlags{Name: "eu", Weights: map[string]int64{"eu": 5, "us": 3}, URL: "redis://between:6379"}
	f.RegionFlags = whole
	s, err := f.Resolve()
	if err != nil || s.Regions.Region != "eu" || s.Regions.URL != whole.URL ||
		!maps.Equal(s.Regions.Weights, map[string]int64{"eu": 625, "us": 375}) {
		t.Errorf("%+v, %v", s.Regions, err)
	}
	for name, c := range map[string]struct {
		change func(*settings.RegionFlags)
		want   string
	}{
		"no name": {func(f *settings.RegionFlags) { f.Name = "" }, "regions need all three"},
		"no URL":  {func(f *settings.RegionFlags) { f.URL = "" }, "regions need all three"},
		"one weight": {func(f *settings.RegionFlags) { f.Weights = map[string]int64{"eu": 1} },
			"at least two weights"},
		"another name": {func(f *settings.RegionFlags) { f.Name = "ap" }, `"ap" is not one of --region-weights`},
		"no weight":    {func(f *settings.RegionFlags) { f.Weights = map[string]int64{"eu": 1, "us": 0} }, `"us"=0`},
		"too little": {func(f *settings.RegionFlags) { f.Weights = map[string]int64{"eu": 1, "us": 1000} },
			"region eu has less than a hundredth"},
		"a strange name": {func(f *settings.RegionFlags) { f.Weights = map[string]int64{"eu": 1, "U S": 1} },
			"names are like eu-west-1"},
		"another address": {func(f *settings.RegionFlags) { f.URL = "http://x" },
			"--region-url (WEIR_REGION_URL): must be like redis://"},
	} {
		f.RegionFlags = whole
		c.change(&f.RegionFlags)
		if _, err := f.Resolve(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
