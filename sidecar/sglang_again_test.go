package sidecar

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// ownSGLang is what one answer of SGLang has of its own.
var ownSGLang = regexp.MustCompile(`"id":"[^"]*"|"created":\d+|"cached_tokens":\d+`)

// A decode engine breaks a stream off after each event. The sidecar of another one runs both legs again, and the client gets the rest.
func TestSGLangStreamIsGeneratedAgain(t *testing.T) {
	prefill, plain := simtest.SGLang(t, sglang.Prefill), simtest.SGLang(t, sglang.Plain)
	pair := simtest.Pair{Prefill: prefill, Decode: simtest.SGLang(t, sglang.Decode)}
	peer := startRig(t, hostPort(pair.Decode.URL), speaksSGLang, withSecrets(t, "open sesame"))
	for api, ask := range map[pd.API]string{
		pd.APIChat:        `{"model":"tiny","messages":[{"role":"user","content":"how do caches feel"}],"max_tokens":12,"stream":true,"temperature":0,"stream_options":{"include_usage":true}}`,
		pd.APICompletions: `{"model":"tiny","prompt":"how do caches feel","max_tokens":12,"stream":true,"temperature":0,"seed":1}`,
	} {
		t.Run(api.String(), func(t *testing.T) {
			want := post(t, plain.URL+api.Path(), ask).body
			total := strings.Count(want, "data: ")
			if total < 10 {
				t.Fatal(want)
			}
			want = ownSGLang.ReplaceAllString(want, "")
			for at := 1; at < total; at++ {
				decode := simtest.SGLang(t, sglang.Decode)
				if err := decode.Faults.Add(fault.Fault{Leg: fault.LegDecode, Fault: fault.ResetAfter, At: strconv.Itoa(at)}); err != nil {
					t.Fatal(err)
				}
				s := startRig(t, hostPort(decode.URL), speaksSGLang, goesOn, withSecrets(t, "open sesame"))
				got := post(t, s.url+api.Path(), ask, pd.HeaderAuth, "open sesame", pd.HeaderPrefill, hostPort(prefill.URL), pd.HeaderDestination, hostPort(decode.URL)+","+hostPort(peer.url))
				if ids := slices.Compact(ownSGLangID.FindAllString(got.body, -1)); len(ids) != 1 {
					t.Errorf("broken off after %d events: ids %v", at, ids)
				}
				if body := ownSGLang.ReplaceAllString(got.body, ""); body != want {
					t.Fatalf("broken off after %d of %d events: %s", at, total, difference(body, want))
				}
				s.end()
				decode.Close()
			}
			pair.Rests(t)
		})
	}
}

var ownSGLangID = regexp.MustCompile(`"id":"[^"]*"`)
