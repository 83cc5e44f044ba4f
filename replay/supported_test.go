package replay

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
)

// outside is a plugin that a replay cannot run, as a build of one's own may have.
type outside struct{ value any }

func (outside) Problems(epp.Report)               {}
func (o outside) Build(*epp.Builder) (any, error) { return o.value, nil }

type asking struct{}

func (asking) Prepare(context.Context, *epp.Request) (func(*epp.Request), error) { return nil, nil }
func (asking) Timeout() time.Duration                                            { return time.Second }

type following struct{}

func (following) Watches() epp.Changes                       { return 0 }
func (following) SnapshotChanged(*epp.Snapshot, epp.Changes) {}

type letting struct{}

func (letting) Admit(context.Context, *epp.Request) (epp.Pass, error) { return epp.Pass{}, nil }
func (letting) Settled(*epp.Request, epp.Pass)                        {}

// TestUnsupportedPlugins: a configuration that cannot be replayed is refused with the name of the plugin, and what to do.
func TestUnsupportedPlugins(t *testing.T) {
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"asks outside":     {asking{}, "its plugin mine asks something outside the picker, which a replay has not: leave it out"},
		"follows the pool": {following{}, "its plugin mine follows changes of the pool, which a replay does not tell: leave it out"},
		"lets pass":        {letting{}, "its plugin mine lets requests wait before the pick by itself, which takes real time: leave it out"},
	} {
		t.Run(name, func(t *testing.T) {
			rows := append([]epp.Row{{Type: "outside", New: func() epp.Plugin { return outside{test.value} }}}, plugin.Table...)
			c, err := config.Parse([]byte("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: outside, name: mine}, {type: queue-scorer}]\n"), rows)
			if err != nil {
				t.Fatal(err)
			}
			if err := (&Options{Config: c}).Supported(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
