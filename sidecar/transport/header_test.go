package transport

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestRequestID(t *testing.T) {
	for _, id := range []string{"a", "call-1", "0af7651916cd43dd8448eb211c80319c", "A.b_c:d-9", strings.Repeat("x", 128)} {
		if got := RequestID(http.Header{"X-Request-Id": {id, "other"}}); got != id {
			t.Errorf("%s became %s", id, got)
		}
	}
	made := map[string]bool{}
	for _, id := range []string{"", "a b", "a\tb", "a/b", "ä", "a\n", `"`, "{}", "@", "[", "`", strings.Repeat("x", 129)} {
		got := RequestID(http.Header{"X-Request-Id": {id}})
		if !pd.WellFormedRequestID(got) || len(got) != 32 || made[got] {
			t.Errorf("%q became %q", id, got)
		}
		made[got] = true
	}
}

func TestLegHeader(t *testing.T) {
	in := http.Header{"Authorization": {"x"}, "X-Mine": {"1", "2"}, "X-Request-Id": {"a", "b"}, "Content-Length": {"7"}, "Expect": {"100-continue"},
		"Connection": {"close, X-Hop", "x-other-hop"}, "X-Hop": {"1"}, "X-Other-Hop": {"1"}, "Te": {"trailers"}, "Upgrade": {"h2c"}, "Transfer-Encoding": {"chunked"},
		"Trailer": {"X"}, "Keep-Alive": {"1"}, "Proxy-Connection": {"1"}, "Proxy-Authorization": {"1"}, "Proxy-Authenticate": {"1"}, "User-Agent": {"u"}}
	for _, name := range []string{"X-Tandem-Pd", "X-Tandem-Plan", "X-Prefiller-Host-Port", "X-Tandem-Auth", "X-Tandem-Other", "X-Prefiller-Url",
		"X-Encoder-Hosts-Ports", "X-Kv-Cache-Hit", "X-Data-Parallel-Host-Port", "X-Gateway-Destination-Endpoint"} {
		in[name] = []string{"x"}
	}
	before := in.Clone()
	got := Stripped(nil).LegHeader(in, "id-1")
	want := http.Header{"Authorization": {"x"}, "X-Mine": {"1", "2"}, "X-Request-Id": {"id-1"}, "User-Agent": {"u"}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if fmt.Sprint(in) != fmt.Sprint(before) {
		t.Errorf("the client's headers became %v", in)
	}
	if agent, ok := Stripped(nil).LegHeader(http.Header{}, "x")["User-Agent"]; !ok || !slices.Equal(agent, []string{""}) {
		t.Errorf("without the client's, User-Agent is %v", agent)
	}
	mine := Stripped(func(name string) bool { return name == "X-Mine" })
	delete(want, "X-Mine")
	if got := mine.LegHeader(in, "id-1"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("with one more stripped, got %v, want %v", got, want)
	}
}
