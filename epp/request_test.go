package epp_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestRequireModel(t *testing.T) {
	for _, c := range []struct {
		name    string
		request epp.Request
		refused bool
	}{
		{"the client's", epp.Request{API: pd.APIChat, Model: "m"}, false},
		{"a rewrite's", epp.Request{API: pd.APIChat, Model: "m", Rewrite: "default"}, false},
		{"none for chat", epp.Request{API: pd.APIChat}, true},
		{"none for messages", epp.Request{API: pd.APIMessages}, true},
		{"none for embeddings", epp.Request{API: pd.APIEmbeddings}, true},
		{"none for token ids", epp.Request{API: pd.APIGenerate}, false},
		{"none for SGLang's own call", epp.Request{API: pd.APISGLang}, false},
		{"none for a request that generates nothing", epp.Request{API: pd.APIOther}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.request.RequireModel()
			if refused := err != nil; refused != c.refused || refused && pd.AsRefusal(err).Reason != pd.BadRequest {
				t.Errorf("got %v, want a refusal: %v", err, c.refused)
			}
		})
	}
}

func TestSubset(t *testing.T) {
	for _, c := range []struct {
		name  string
		texts []string
		addr  string
		want  bool
	}{
		{"an address and port", []string{"10.0.0.1:8000"}, "10.0.0.1:8000", true},
		{"another port", []string{"10.0.0.1:8000"}, "10.0.0.1:8001", false},
		{"another address", []string{"10.0.0.1:8000"}, "10.0.0.2:8000", false},
		{"one of several", []string{"10.0.0.1:8000", "10.0.0.2:8000"}, "10.0.0.2:8000", true},
		{"every port", []string{"10.0.0.1"}, "10.0.0.1:8001", true},
		{"every port of another", []string{"10.0.0.1"}, "10.0.0.2:8001", false},
		{"IPv6", []string{"[2001:db8::1]:8000"}, "[2001:db8::1]:8000", true},
		{"IPv6 written differently", []string{"[2001:0DB8:0::1]:8000"}, "[2001:db8::1]:8000", true},
		{"IPv6 without a port", []string{"2001:db8::1"}, "[2001:db8::1]:8000", true},
		{"IPv4 in IPv6", []string{"[::ffff:10.0.0.1]:8000"}, "10.0.0.1:8000", true},
		{"IPv4 in IPv6 without a port", []string{"::ffff:10.0.0.1"}, "10.0.0.1:8000", true},
		{"nothing", nil, "10.0.0.1:8000", false},
		{"nothing that is an address", []string{"", "pod-0:8000", "10.0.0.1:x"}, "10.0.0.1:8000", false},
		{"among what is none", []string{"pod-0", "10.0.0.1:8000"}, "10.0.0.1:8000", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := epp.NewSubset(c.texts...).Has(netip.MustParseAddrPort(c.addr)); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
	var all *epp.Subset
	if !all.Has(netip.MustParseAddrPort("10.0.0.1:8000")) {
		t.Error("no subset leaves something out")
	}
}

func TestSplitList(t *testing.T) {
	for _, c := range []struct {
		name     string
		in, want []string
	}{
		{"nothing", nil, nil},
		{"blanks", []string{"", " , ,"}, nil},
		{"one", []string{"a"}, []string{"a"}},
		{"several in several", []string{"a, b", "c,"}, []string{"a", "b", "c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := epp.SplitList(c.in...); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestMatchable(t *testing.T) {
	for _, test := range []struct {
		name   string
		prompt epp.Prompt
		want   int
	}{
		{"empty", epp.Prompt{}, 0},
		{"no blocks wanted", epp.Prompt{Tokens: 10}, 10},
		{"shorter than a block", epp.Prompt{Tokens: 10, BlockTokens: 16}, 10},
		{"with a tail", epp.Prompt{Tokens: 40, BlockTokens: 16, Blocks: make([]uint64, 2)}, 32},
		{"beyond the longest that is matched", epp.Prompt{Tokens: 1000, BlockTokens: 16, Blocks: make([]uint64, 4)}, 64},
	} {
		if got := test.prompt.Matchable(); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}
