package dialect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/dialect/dialecttest"
)

// noRank is a rank that no picker has chosen.
var noRank pd.Rank

// moriioPair are engines with one rank, of which decode reads.
var moriioPair = dialect.MoRIIO{Local: "10.0.0.8", Decode: dialect.MoRIIOPorts{Handshake: 6301, Notify: 61005},
	Prefill: dialect.MoRIIOPorts{Handshake: 6302, Notify: 61006}, Tensor: 1, Data: 1}

// moriioAnswer is what a prefill engine answers to a leg (vLLM 0.32.0): the members in its order.
func moriioAnswer(leg []byte) []byte {
	var l struct {
		Params struct {
			Transfer string `json:"transfer_id"`
		} `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(leg, &l); err != nil {
		panic(err) // the leg is the dialect's
	}
	return []byte(strings.ReplaceAll(`{"choices":[{"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":32}},`+
		`"kv_transfer_params":`+moriioOffer+`}`, "TRANSFER", l.Params.Transfer))
}

const moriioOffer = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"10.0.0.7:6302","remote_host":"10.0.0.7",` +
	`"remote_handshake_port":6302,"remote_notify_port":61006,"remote_dp_rank":0,"remote_dp_rank_override":true,"remote_dp_size":1,"remote_dp_size_local":1,"tp_size":1,"transfer_id":"TRANSFER"}`

var moriioCase = dialecttest.Case{
	Good: moriioAnswer,
	Bad: []string{`{"kv_transfer_params":null}`, `{"kv_transfer_params":{}}`, `{"kv_transfer_params":` + moriioOffer + `}`, `{"kv_transfer_params":` + handoff + `}`,
		`{"choices":[{"finish_reason":"stop"}],"kv_transfer_params":null}`},
	Own:         []string{"kv_transfer_params"},
	OneToken:    true,
	EndsByLimit: true,
	Headers:     []string{"x-data-parallel-rank"},
	Minted:      []string{"kv_transfer_params.transfer_id"},
}

// The modes that the table's own case does not have.
func TestMoRIIOModes(t *testing.T) {
	for name, change := range map[string]func(*dialect.MoRIIO){
		"write":    func(o *dialect.MoRIIO) { o.Write = true },
		"parallel": func(o *dialect.MoRIIO) { o.Write, o.Parallel = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			c := moriioCase
			c.Dialect = moriio(change)
			dialecttest.Run(t, c)
		})
	}
}

func moriio(changes ...func(*dialect.MoRIIO)) dialect.Dialect {
	o := moriioPair
	for _, change := range changes {
		change(&o)
	}
	d, _ := dialect.New("moriio", dialect.Options{MoRIIO: o, Lease: 60 * time.Second})
	return d
}

// paramsOf returns the parameters of a leg.
func paramsOf(t *testing.T, leg string) (params string) {
	t.Helper()
	var l struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(leg), &l); err != nil {
		t.Fatal(err)
	}
	return string(l.Params)
}

// ranked are engines of 16 ranks on two pods each.
func ranked(o *dialect.MoRIIO) {
	o.Write, o.Tensor, o.Data, o.LocalData = true, 2, 16, 8
	o.PrefillHosts, o.DecodeHosts = []string{"p-0.pods", "p-1.pods"}, []string{"d-0.pods", "d-1.pods"}
	addresses := map[string]string{"10.0.0.8": "10.0.0.8", "p-0.pods": "10.0.0.7", "p-1.pods": "10.0.1.7", "d-0.pods": "10.0.0.8", "d-1.pods": "10.0.1.8"}
	o.Resolve = func(_ context.Context, host string) (string, error) {
		if a := addresses[host]; a != "" {
			return a, nil
		}
		return "", errors.New("no such host")
	}
}

// The legs are those that llm-d's sidecar sends.
func TestMoRIIOLegs(t *testing.T) {
	const (
		toDecode  = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_port":null,"remote_host":"10.0.0.8","remote_handshake_port":6301,"remote_notify_port":61005,`
		toPrefill = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"10.0.0.7:6302","remote_block_ids":[],"remote_port":6302,"remote_host":"10.0.0.7","remote_handshake_port":6302,"remote_notify_port":61006,`
		one       = `"remote_dp_rank":0,"remote_dp_rank_override":true,"transfer_id":"TRANSFER","tp_size":1,"remote_dp_size":1}`
		eleventh  = `"remote_dp_rank":11,"remote_dp_rank_override":true,"transfer_id":"TRANSFER","tp_size":2,"remote_dp_size":16,`
	)
	offer := strings.Replace(moriioOffer, `"remote_dp_rank":0`, `"remote_dp_rank":11`, 1)
	for _, c := range []struct {
		name            string
		change          func(*dialect.MoRIIO)
		planned         pd.Rank
		answer          string
		prefill, decode string
		ranks           [2]string // headers of the legs
	}{
		{"read", nil, noRank, moriioOffer, toDecode + one, moriioOffer, [2]string{"", "1"}},
		{"read, of a planned rank", nil, pd.RankOf(3), strings.Replace(moriioOffer, `rank":0`, `rank":3`, 1), toDecode + strings.Replace(one, `rank":0`, `rank":3`, 1),
			strings.Replace(moriioOffer, `rank":0`, `rank":3`, 1), [2]string{"3", "1"}},
		{"written", func(o *dialect.MoRIIO) { o.Write = true }, pd.RankOf(3), moriioOffer, toDecode + one, moriioOffer, [2]string{}},
		{"written, over several pods", ranked, pd.RankOf(11), offer, toDecode + eleventh + `"remote_hosts":["10.0.0.8","10.0.1.8"],"remote_dp_size_local":8}`,
			`{"remote_hosts":["10.0.0.7","10.0.1.7"],` + offer[1:], [2]string{"3", "3"}},
		{"at once", func(o *dialect.MoRIIO) { o.Write, o.Parallel = true, true }, noRank, moriioOffer, toDecode + one, toPrefill + one, [2]string{}},
		{"at once, over several pods", func(o *dialect.MoRIIO) { ranked(o); o.Parallel = true }, pd.RankOf(11), offer,
			toDecode + eleventh + `"remote_hosts":["10.0.0.8","10.0.1.8"],"remote_dp_size_local":8}`,
			toPrefill + eleventh + `"remote_hosts":["10.0.0.7","10.0.1.7"],"remote_dp_size_local":8}`, [2]string{"3", "3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			changes := []func(*dialect.MoRIIO){}
			if c.change != nil {
				changes = append(changes, c.change)
			}
			a, err := memberAttempt(t, moriio(changes...), pd.APICompletions, `{"prompt":"x","stop_token_ids":[5]}`)
			if err != nil {
				t.Fatal(err)
			}
			a.(dialect.Ranked).UseRanks(c.planned, pd.RankOf(1))
			var ranks [2]string
			first := http.Header{}
			a.(dialect.HeaderSetter).SetHeader(pd.RolePrefill, first)
			ranks[0] = first.Get("X-Data-Parallel-Rank")
			l, err := a.Prefill()
			prefill := text(t, l, err)
			_, id, _ := strings.Cut(prefill, `"transfer_id":"`)
			id, _, _ = strings.Cut(id, `"`)
			if got := strings.ReplaceAll(paramsOf(t, prefill), id, "TRANSFER"); got != c.prefill || !strings.HasPrefix(id, "tx") || strings.Contains(prefill, "stop_token") {
				t.Errorf("prefill leg %s\nwant %s", prefill, c.prefill)
			}
			h, err := a.Accept([]byte(`{"kv_transfer_params":` + strings.ReplaceAll(c.answer, "TRANSFER", id) + `}`))
			if err != nil {
				t.Fatal(err)
			}
			l, err = h.Decode()
			if got := strings.ReplaceAll(paramsOf(t, text(t, l, err)), id, "TRANSFER"); got != c.decode {
				t.Errorf("decode leg %s\nwant %s", got, c.decode)
			}
			header := http.Header{}
			h.(dialect.HeaderSetter).SetHeader(pd.RoleDecode, header)
			if ranks[1] = header.Get("X-Data-Parallel-Rank"); ranks != c.ranks {
				t.Errorf("the legs have the ranks %q, want %q", ranks, c.ranks)
			}
		})
	}
}

// Of engines with several ranks each attempt has one, whatever the picker says; a rank that they do not have is not taken.
func TestMoRIIORankOfAttempt(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		a, err := memberAttempt(t, moriio(ranked), pd.APIChat, `{"messages":[]}`)
		if err != nil {
			t.Fatal(err)
		}
		a.(dialect.Ranked).UseRanks(pd.RankOf(16), noRank)
		prefill, decode := http.Header{}, http.Header{}
		a.(dialect.HeaderSetter).SetHeader(pd.RolePrefill, prefill)
		a.(dialect.HeaderSetter).SetHeader(pd.RoleDecode, decode)
		rank := prefill.Get("X-Data-Parallel-Rank")
		if rank == "" || rank != decode.Get("X-Data-Parallel-Rank") || rank >= "8" || len(rank) > 1 {
			t.Fatalf("ranks %q and %q", prefill, decode)
		}
		seen[rank] = true
	}
	if len(seen) != 8 {
		t.Errorf("of 8 ranks of a pod, %d were used", len(seen))
	}
}

// A name that does not resolve is a reason to try another candidate, and not to send a leg without an address, of which prefill ends.
func TestMoRIIOUnresolved(t *testing.T) {
	for name, change := range map[string]func(*dialect.MoRIIO){
		"own":     func(o *dialect.MoRIIO) { ranked(o); o.Local = "nowhere" },
		"prefill": func(o *dialect.MoRIIO) { ranked(o); o.PrefillHosts[1] = "nowhere" },
		"decode":  func(o *dialect.MoRIIO) { ranked(o); o.DecodeHosts[0] = "nowhere" },
	} {
		if a, err := memberAttempt(t, moriio(change), pd.APIChat, `{"messages":[]}`); err == nil {
			t.Errorf("%s: an attempt %v", name, a)
		}
	}
}

// Decode ends, or waits for ever, or reads another prompt's blocks, with what is rejected here.
func TestMoRIIORejects(t *testing.T) {
	replaced := func(old, by string) string { return strings.Replace(moriioOffer, old, by, 1) }
	write := func(o *dialect.MoRIIO) { o.Write = true }
	parallel := func(o *dialect.MoRIIO) { o.Write, o.Parallel = true, true }
	none := func(*dialect.MoRIIO) {}
	for _, c := range []struct {
		name   string
		mode   func(*dialect.MoRIIO)
		params string
		wrong  error // which the error is; nil: any
	}{
		{"another transfer", none, replaced("TRANSFER", "tx-other"), nil},
		{"no transfer", write, replaced(`,"transfer_id":"TRANSFER"`, ""), nil},
		{"no host", write, replaced(`"remote_host":"10.0.0.7",`, ""), nil},
		{"an empty host", write, replaced(`"remote_host":"10.0.0.7"`, `"remote_host":""`), nil},
		{"no engine", none, replaced(`"remote_engine_id":"10.0.0.7:6302",`, ""), nil},
		{"no notify port", write, replaced(`"remote_notify_port":61006,`, ""), nil},
		{"a port in a string", none, replaced(`61006`, `"61006"`), nil},
		{"a port that is none", none, replaced(`61006`, `70000`), nil},
		{"no blocks", none, replaced(`[[1,2,3,4]]`, `[]`), nil},
		{"flat blocks", none, replaced(`[[1,2,3,4]]`, `[1,2]`), nil},
		{"null blocks", write, replaced(`[[1,2,3,4]]`, `null`), nil},
		{"a rank that is not there", write, replaced(`"remote_dp_rank":0`, `"remote_dp_rank":3`), nil},
		{"a rank in a string", none, replaced(`"remote_dp_rank":0`, `"remote_dp_rank":"0"`), nil},
		{"twice", none, replaced(`"remote_host"`, `"remote_host":"x","remote_host"`), nil},
		{"NIXL's", none, handoff, dialect.ErrWrongProtocol},
		{"another notify port than decode was told", parallel, replaced(`61006`, `61007`), nil},
		{"another handshake port than decode was told", parallel, replaced(`"remote_handshake_port":6302`, `"remote_handshake_port":6303`), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := memberAttempt(t, moriio(c.mode), pd.APICompletions, `{"prompt":"x"}`)
			if err != nil {
				t.Fatal(err)
			}
			l, err := a.Prefill()
			answer := moriioAnswer([]byte(text(t, l, err)))
			_, params, _ := bytes.Cut(answer, []byte(`"kv_transfer_params":`))
			var good struct {
				Transfer string `json:"transfer_id"`
			}
			if err := json.Unmarshal(bytes.TrimSuffix(params, []byte("}")), &good); err != nil {
				t.Fatal(err)
			}
			_, err = a.Accept([]byte(`{"kv_transfer_params":` + strings.ReplaceAll(c.params, "TRANSFER", good.Transfer) + `}`))
			if err == nil || c.wrong != nil && !errors.Is(err, c.wrong) {
				t.Errorf("accepted, or rejected for another reason: %v", err)
			}
			if _, err := a.Accept(answer); err != nil {
				t.Errorf("the undamaged answer is rejected: %v", err)
			}
		})
	}
}

// A prefill engine frees its blocks at once if a leg ends by its first token.
func TestMoRIIOEnded(t *testing.T) {
	for answer, want := range map[string]error{
		`{"stop_reason":"end_turn","content":[],"kv_transfer_params":null}`:   dialect.ErrEnded,
		`{"stop_reason":"max_tokens","content":[],"kv_transfer_params":null}`: dialect.ErrNoHandoff,
		`{"error":{"message":"x"}}`: dialect.ErrNoHandoff,
	} {
		a, err := memberAttempt(t, moriio(), pd.APIMessages, `{"messages":[]}`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Accept([]byte(answer)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", answer, err, want)
		}
	}
}

// A decode engine that reads takes each prompt for one whose KV cache comes.
func TestMoRIIOWhole(t *testing.T) {
	for _, write := range []bool{false, true} {
		d := moriio(func(o *dialect.MoRIIO) { o.Write = write }).(dialect.Moded)
		if whole, err := d.Whole(nil); d.ModePath() != "" || whole != write || err != nil {
			t.Errorf("written %t: serves alone %t, %v", write, whole, err)
		}
	}
}

// Too few blocks end a decode engine that reads.
func TestMoRIIOBlocks(t *testing.T) {
	for _, c := range []struct {
		write bool
		ok    bool
	}{{false, false}, {true, true}} {
		o := moriioPair
		o.Write = c.write
		d, _ := dialect.New("moriio", dialect.Options{MoRIIO: o, BlockSize: 16})
		a, err := memberAttempt(t, d, pd.APICompletions, `{"prompt":"x"}`)
		if err != nil {
			t.Fatal(err)
		}
		l, err := a.Prefill()
		h, err := a.Accept(moriioAnswer([]byte(text(t, l, err)))) // 4 blocks of 16 for 100 tokens
		if (err == nil) != c.ok || h == nil {
			t.Errorf("written %t: %v, %v", c.write, h, err)
		}
	}
}

// Decode counts what it got as cached.
func TestMoRIIOUsage(t *testing.T) {
	for _, d := range []dialect.Dialect{moriio(), moriio(func(o *dialect.MoRIIO) { o.Write, o.Parallel = true, true })} {
		a, err := memberAttempt(t, d, pd.APICompletions, `{"prompt":"x"}`)
		if err != nil {
			t.Fatal(err)
		}
		l, err := a.Prefill()
		h, err := a.Accept(moriioAnswer([]byte(text(t, l, err))))
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := h.(dialect.UsageCorrector).Cached(); n != 32 || !ok {
			t.Errorf("%d, %t", n, ok)
		}
	}
}

// A sidecar that is set for NIXL says which protocol its prefill engines speak.
func TestMoRIIOAnswersNIXL(t *testing.T) {
	d, _ := dialect.New("nixlv2", dialect.Options{})
	a, err := memberAttempt(t, d, pd.APICompletions, `{"prompt":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Accept([]byte(`{"kv_transfer_params":` + moriioOffer + `}`)); !errors.Is(err, dialect.ErrWrongProtocol) || !strings.Contains(err.Error(), "moriio") {
		t.Error(err)
	}
}

// BenchmarkMoRIIO makes both legs of a request, with prefill's answer between them.
func BenchmarkMoRIIO(b *testing.B) {
	for name, change := range map[string]func(*dialect.MoRIIO){
		"one after the other": func(*dialect.MoRIIO) {},
		"at once":             func(o *dialect.MoRIIO) { o.Write, o.Parallel = true, true },
	} {
		b.Run(name, func(b *testing.B) {
			d := moriio(change)
			asks := []byte(`{"prompt":"` + strings.Repeat("a prompt of some length ", 100) + `","max_tokens":9}`)
			table := dialect.Members(d)
			var scan body.Scanner
			if err := scan.Scan(table.Members(), body.Limits{}, asks); err != nil {
				b.Fatal(err)
			}
			whole := &body.Body{}
			whole.Append(asks)
			r := table.Request(pd.APICompletions, whole, &scan)
			before, after, _ := bytes.Cut(moriioAnswer([]byte(`{}`)), []byte(`"transfer_id":"`))
			b.ReportAllocs()
			for b.Loop() {
				a := attempt(b, d, r)
				l, err := a.Prefill()
				if err != nil {
					b.Fatal(err)
				}
				var id []byte
				for _, part := range l.Segments {
					if _, rest, found := bytes.Cut(part, []byte(`"transfer_id":"`)); found {
						id, _, _ = bytes.Cut(rest, []byte(`"`))
					}
				}
				h, err := a.Accept(bytes.Join([][]byte{before, []byte(`"transfer_id":"`), id, after}, nil))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := h.Decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
