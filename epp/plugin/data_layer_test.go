package plugin

import (
	"reflect"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// TestDataLayer checks that parameters reach the pool's own settings, over their defaults.
func TestDataLayer(t *testing.T) {
	source := pool.DefaultSource()
	source.Scheme, source.Port, source.Interval = "https", 9100, 50*time.Millisecond
	extractor := page.DefaultExtractor()
	extractor.DefaultEngine = "mine"
	extractor.EngineConfigs = []page.EngineConfig{{Name: "mine", QueuedRequestsSpec: "q{a=b}"}}
	models, gpus := pool.DefaultSource(), pool.DefaultSource()
	models.Path, gpus.Port = "/v1/models", 9400
	for _, test := range []struct {
		typ, parameters string
		want            any
	}{
		{"file-discovery", "{path: endpoints.yaml, watchFile: true}", &pool.File{Path: "endpoints.yaml", WatchFile: true}},
		{"metrics-data-source", "", pool.DefaultSource()},
		{"metrics-data-source", "{scheme: https, port: 9100, interval: 50ms}", source},
		{"models-data-source", "", pool.FurtherSource{Source: models, Usual: 10 * time.Second}},
		{"dcgm-data-source", "", pool.FurtherSource{Source: gpus, Usual: time.Second}},
		{"dcgm-data-source", "useNodeAddress: true", pool.FurtherSource{Source: gpus, Node: true, Usual: time.Second}},
		{"core-metrics-extractor", "", page.DefaultExtractor()},
		{"core-metrics-extractor", "{defaultEngine: mine, engineConfigs: [{name: mine, queuedRequestsSpec: 'q{a=b}'}]}", extractor},
	} {
		if got := build[any](t, test.typ, test.parameters); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s {%s}: %+v, want %+v", test.typ, test.parameters, got, test.want)
		}
	}
}
