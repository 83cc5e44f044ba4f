package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// asking is a round for a request with these items.
func asking(items ...uint64) *epp.Round {
	r := round(source(1))
	r.Request.Prompt.Media = items
	return r
}

// mediaPlugins are a producer, and a scorer that reads it.
type mediaPlugins struct {
	epp.PickObserver
	epp.EndpointObserver
	epp.Scorer
}

func newMediaPlugins(t *testing.T, parameters string) mediaPlugins {
	t.Helper()
	producer := build[any](t, "mm-embeddings-cache-producer", parameters)
	b := builder()
	b.Instance = func(string) (any, bool) { return producer, true }
	p, err := decode(t, "mm-embeddings-cache-scorer", "producerName: mine")
	if err != nil {
		t.Fatal(err)
	}
	scorer, err := p.Build(b)
	if err != nil {
		t.Fatal(err)
	}
	return mediaPlugins{producer.(epp.PickObserver), producer.(epp.EndpointObserver), scorer.(epp.Scorer)}
}

// slotted are endpoints a, b and c, each in a slot of its own.
func slotted() []epp.Candidate {
	c := labelled(nil, nil, nil)
	for i := range c {
		c[i].Slot = i
	}
	return c
}

func (m mediaPlugins) scores(c []epp.Candidate, items ...uint64) []float64 {
	scores := make([]float64, len(c))
	m.Score(asking(items...), c, scores)
	return scores
}

// TestMedia: an endpoint scores the share of a request's items that it has encoded.
func TestMedia(t *testing.T) {
	m, c := newMediaPlugins(t, ""), slotted()
	m.Picked(asking(1, 2), c, sentTo(c[0].Endpoint))
	m.Picked(asking(3), c, sentTo(c[1].Endpoint))
	m.Picked(asking(), c, sentTo(c[2].Endpoint)) // text
	for _, test := range []struct {
		items []uint64
		want  []float64
	}{
		{nil, []float64{0, 0, 0}},
		{[]uint64{1}, []float64{1, 0, 0}},
		{[]uint64{1, 2}, []float64{1, 0, 0}},
		{[]uint64{1, 3}, []float64{0.5, 0.5, 0}},
		{[]uint64{1, 2, 3, 4}, []float64{0.5, 0.25, 0}},
		{[]uint64{9}, []float64{0, 0, 0}},
	} {
		if got := m.scores(c, test.items...); !slices.Equal(got, test.want) {
			t.Errorf("items %v: scores %v, want %v", test.items, got, test.want)
		}
	}
	m.EndpointLeft(c[0].Endpoint)
	if got := m.scores(c, 1, 3); !slices.Equal(got, []float64{0, 0.5, 0}) {
		t.Errorf("after an endpoint has left: scores %v", got)
	}
}

// TestMediaForgets: an endpoint has as many items as its cache holds, and the ones not used for longest are forgotten.
func TestMediaForgets(t *testing.T) {
	for parameters, size := range map[string]uint64{"": 2048, "cacheSizeInMBPerServer: 6": 3, "cacheSizeInMBPerServer: 1": 1} {
		t.Run(parameters, func(t *testing.T) {
			m, c := newMediaPlugins(t, parameters), slotted()
			for item := range size {
				m.Picked(asking(item+1), c, sentTo(c[0].Endpoint))
			}
			kept := func() string {
				return fmt.Sprint(m.scores(c, 1)[0], m.scores(c, 2)[0], m.scores(c, size)[0], m.scores(c, size+1)[0])
			}
			m.Picked(asking(1), c, sentTo(c[0].Endpoint)) // used again
			m.Picked(asking(size+1), c, sentTo(c[0].Endpoint))
			want := "1 0 1 1"
			if size == 1 {
				want = "0 1 0 1" // 2 is the new one
			}
			if got := kept(); got != want {
				t.Errorf("of the items 1, 2, %d and %d, %s are known, want %s", size, size+1, got, want)
			}
		})
	}
}

// TestMediaEncoders: the items are noted for the endpoints that encode them.
func TestMediaEncoders(t *testing.T) {
	for _, test := range []struct {
		name, parameters string
		picks            []epp.StageRow // of the endpoints a, b and c, in this order
		want             string         // those that know the item
	}{
		{"decode alone", "", []epp.StageRow{epp.DecodeRow("decode")}, "a"},
		{"prefill", "", []epp.StageRow{epp.DecodeRow("decode"), epp.PrefillRow("prefill", 1)}, "b"},
		{"encode", "", []epp.StageRow{epp.DecodeRow("decode"), epp.EncodeRow("encode", epp.NamedDecider{}), epp.PrefillRow("prefill", 1)}, "b"},
		{"encode of another name", "encodeProfile: e", []epp.StageRow{epp.DecodeRow("decode"), epp.EncodeRow("e", epp.NamedDecider{})}, "b"},
		{"another stage of that name", "encodeProfile: e", []epp.StageRow{epp.DecodeRow("decode"), epp.EncodeRow("encode", epp.NamedDecider{})}, "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, c := newMediaPlugins(t, test.parameters), slotted()
			d := &epp.Decision{}
			for i := range test.picks {
				d.Picks = append(d.Picks, epp.StagePick{Row: &test.picks[i], Endpoints: []*epp.Endpoint{c[i].Endpoint}})
			}
			m.Picked(asking(5), c, d)
			var knowing []string
			for i, score := range m.scores(c, 5) {
				if score == 1 {
					knowing = append(knowing, c[i].Name)
				}
			}
			if got := strings.Join(knowing, ""); got != test.want {
				t.Errorf("%q know the item, want %q", got, test.want)
			}
		})
	}
}

// TestMediaSharesEncoders: all endpoints of the encode stage get a share of the items, so each may have any of them.
func TestMediaSharesEncoders(t *testing.T) {
	m, c := newMediaPlugins(t, ""), slotted()
	decode, encode := epp.DecodeRow("decode"), epp.EncodeRow("encode", epp.NamedDecider{})
	m.Picked(asking(5), c, &epp.Decision{Picks: []epp.StagePick{{Row: &decode, Endpoints: []*epp.Endpoint{c[0].Endpoint}},
		{Row: &encode, Endpoints: []*epp.Endpoint{c[1].Endpoint, c[2].Endpoint}}}})
	if got := m.scores(c, 5); !slices.Equal(got, []float64{0, 1, 1}) {
		t.Errorf("scores %v", got)
	}
}
