package producer

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// checked returns what the metrics of a preparer say of the prompts that were compared: by what made their ids, and the result.
func checked(t *testing.T, p epp.Preparer) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(p.(prometheus.Collector))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			by, result := "", ""
			for _, l := range m.Label {
				switch l.GetName() {
				case "by":
					by = l.GetValue()
				case "result":
					result = l.GetValue()
				}
			}
			if f.GetName() == "tandem_tokens_checked_total" {
				all[by+" "+result] += m.GetCounter().GetValue()
			} else {
				all[by+" equal"] += float64(m.GetHistogram().Bucket[0].GetCumulativeCount())
				all[by+" all"] += float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}

func TestTokenCounts(t *testing.T) {
	for _, c := range []struct {
		name     string
		reported []int // by the engine for a prompt of 10 tokens, each of them ten times
		off      float64
		warns    bool
	}{
		{"equal", []int{10, 10, 10, 10, 10}, 0, false},
		{"more than one in twenty differs", []int{10, 10, 10, 10, 11}, 10, true},
		{"all differ, but too few to judge", []int{9}, 10, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			check := keptCheck(&epp.Builder{Log: slog.New(slog.NewTextHandler(&log, nil)), Keep: new(epp.Keep), Name: "p"}, "m", checkedLocal, "")
			for _, reported := range c.reported {
				for range 10 {
					check.Counted(10, reported)
				}
			}
			if got := log.String(); strings.Contains(got, "other tokens") != c.warns || check.wrong.Load() != c.warns {
				t.Errorf("logged %q, wrong: %v; want a warning: %v", got, check.wrong.Load(), c.warns)
			}
			got, all := checked(t, &localTokens{models: map[string]*localModel{"m": {check: check}}}), float64(10*len(c.reported))
			if got["local off"] != c.off || got["local exact"] != all-c.off || got["local equal"] != all-c.off || got["local all"] != all {
				t.Errorf("counted %v, want %v of %v to differ", got, c.off, all)
			}
		})
	}
}

// TestWrongTokenizer: the service is asked once the tokenizer.json is found not to be the engine's; without one its ids are still used.
func TestWrongTokenizer(t *testing.T) {
	path := write(t, smallTokenizer)
	keep := new(epp.Keep)
	alone, err := local(t, path, keep, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &tokenizer{answers: map[string]string{textPath: textAnswer}}
	backed := s.service(t, func(p *Token) { p.Local = &TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}} })
	for _, p := range []epp.Preparer{alone, backed} {
		for range judged {
			r := asked(pd.APICompletions, "tiny", `{"prompt":"ab"}`)
			if got := prepared(t, p, r); !slices.Equal(got, []uint32{3, 2}) {
				t.Fatalf("got %d before anything is known", got)
			}
			r.Prompt.Source.Counted(r.Prompt.Tokens, 3)
		}
	}
	r := asked(pd.APICompletions, "tiny", `{"prompt":"ab"}`)
	if got := prepared(t, backed, r); !slices.Equal(got, []uint32{267, 73}) {
		t.Errorf("got %d, want those of the service", got)
	}
	r.Prompt.Source.Counted(2, 2)
	if got := checked(t, backed); got["local off"] != judged || got["service exact"] != 1 {
		t.Errorf("counted %v", got)
	}
	if got := prepared(t, alone, asked(pd.APICompletions, "tiny", `{"prompt":"ab"}`)); !slices.Equal(got, []uint32{3, 2}) {
		t.Errorf("without a service: got %d", got)
	}
	again, err := local(t, path, keep, nil) // a reload
	if err != nil {
		t.Fatal(err)
	}
	if got := checked(t, again); got["local off"] != judged {
		t.Errorf("after a reload: counted %v", got)
	}
}
