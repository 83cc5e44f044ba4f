package dialect_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// bootstrapServer answers /query with the text that stands in it; "" = it is not there.
type bootstrapServer struct {
	query string
	asked []string
}

func (s *bootstrapServer) ask(_ context.Context, server pd.Target, path string) ([]byte, error) {
	s.asked = append(s.asked, server.String()+path)
	if s.query == "" {
		return nil, errors.New("connection refused")
	}
	return []byte(s.query), nil
}

// oneEngine is what vLLM 0.32.0 answers to /query.
const oneEngine = `{"0":{"engine_id":"d9bbeb61-378f","worker_addr":{"0":{"0":"tcp://127.0.0.1:42353"}}}}`

func memberAttempt(t *testing.T, d dialect.Dialect, api pd.API, in string) (dialect.Attempt, error) {
	t.Helper()
	var scan body.Scanner
	table := dialect.Members(d)
	if err := scan.Scan(table.Members(), body.Limits{}, []byte(in)); err != nil {
		t.Fatal(err)
	}
	b := &body.Body{}
	b.Append([]byte(in))
	return d.Attempt(t.Context(), table.Request(api, b, &scan), pd.Target{Host: "10.0.0.7", Port: 8000})
}

func TestMooncakeLegs(t *testing.T) {
	var none pd.Rank
	for _, c := range []struct {
		name, query     string
		planned         pd.Rank
		prefill, decode string // what the legs end with, but for the transfer id
		rank            string // header of the prefill leg
	}{
		{"one engine", oneEngine, none, `"max_tokens":1,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":ID}}`,
			`"remote_engine_id":"d9bbeb61-378f","remote_bootstrap_addr":"http://10.0.0.7:8998"}}`, ""},
		{"another rank beside it", `{"7":{"engine_id":"fake"},"0":{"engine_id":"e-0"}}`, none, `}}`, `"remote_engine_id":"e-0","remote_bootstrap_addr":"http://10.0.0.7:8998"}}`, "0"},
		{"the planned rank", `{"0":{"engine_id":"e-0"},"1":{"engine_id":"e-1"}}`, pd.RankOf(1), `}}`, `"remote_engine_id":"e-1","remote_bootstrap_addr":"http://10.0.0.7:8998"}}`, "1"},
		{"a planned rank that is not there", `{"0":{"engine_id":"e-0"}}`, pd.RankOf(3), `}}`, `"remote_engine_id":"e-0","remote_bootstrap_addr":"http://10.0.0.7:8998"}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := &bootstrapServer{query: c.query}
			d, _ := dialect.New("mooncake", dialect.Options{AskBootstrap: server.ask, MooncakePort: dialect.MooncakePort})
			a, err := memberAttempt(t, d, pd.APICompletions, `{"prompt":"x","stop_token_ids":[5],"stop":"y","min_tokens":3}`)
			if err != nil {
				t.Fatal(err)
			}
			a.(dialect.Ranked).UseRanks(c.planned, none)
			header := http.Header{}
			a.(dialect.HeaderSetter).SetHeader(pd.RolePrefill, header)
			if got := header.Get("X-Data-Parallel-Rank"); got != c.rank {
				t.Errorf("prefill's rank is %q, want %q", got, c.rank)
			}
			l, err := a.Prefill()
			prefill := text(t, l, err)
			l, err = a.(dialect.Rendezvous).Handoff().Decode()
			decode := text(t, l, err)
			_, id, _ := strings.Cut(prefill, `"transfer_id":`)
			id = strings.TrimSuffix(id, "}}")
			if !strings.HasSuffix(prefill, strings.ReplaceAll(c.prefill, "ID", id)) || strings.Contains(prefill, "stop") || strings.Contains(prefill, "min_tokens") {
				t.Errorf("prefill leg %s", prefill)
			}
			if !strings.HasSuffix(decode, `"stop_token_ids":[5],"stop":"y","min_tokens":3,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":`+id+`,`+c.decode) {
				t.Errorf("decode leg %s", decode)
			}
		})
	}
}

// Without the id of the engine a decode engine would hang or end, so there is no attempt.
func TestMooncakeBootstrapServer(t *testing.T) {
	for _, query := range []string{"", "{}", `{"7":{"engine_id":"fake"}}`, `{"0":{}}`, `{"0":{"engine_id":null}}`, `{"0":{"engine_id":7}}`, `[]`, `<html>`} {
		d, _ := dialect.New("mooncake", dialect.Options{AskBootstrap: (&bootstrapServer{query: query}).ask, MooncakePort: dialect.MooncakePort})
		if a, err := memberAttempt(t, d, pd.APIChat, `{"messages":[]}`); err == nil {
			t.Errorf("%q makes an attempt: %v", query, a)
		}
	}
}

// An engine that was started anew has another id at the same address. Decode waits nine minutes for the former one.
func TestMooncakeAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &bootstrapServer{query: oneEngine}
		d, _ := dialect.New("mooncake", dialect.Options{AskBootstrap: server.ask, MooncakePort: 9000})
		attempt := func(times int) dialect.Attempt {
			t.Helper()
			a, err := memberAttempt(t, d, pd.APIChat, `{"messages":[]}`)
			if err != nil {
				t.Fatal(err)
			}
			if len(server.asked) != times || server.asked[0] != "10.0.0.7:9000/query" {
				t.Fatalf("asked %v", server.asked)
			}
			return a
		}
		attempt(1)
		a := attempt(1)
		if _, err := a.Accept([]byte(`{"error":"x"}`)); err == nil {
			t.Fatal("accepted an error")
		}
		attempt(2)
		a.(dialect.RequestReleaser).ReleaseRequest()
		attempt(3)
		time.Sleep(5 * time.Second) // less than any engine takes to start
		attempt(4)
	})
}

// Decode counts the whole prompt as cached. Prefill's count is right.
func TestMooncakeUsage(t *testing.T) {
	d, _ := dialect.New("mooncake", dialect.Options{AskBootstrap: (&bootstrapServer{query: oneEngine}).ask, MooncakePort: dialect.MooncakePort})
	for api, answer := range map[pd.API]string{
		pd.APICompletions: `{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":64}}}`,
		pd.APIChat:        `{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":64}}}`,
		pd.APIResponses:   `{"status":"incomplete","output":[],"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":64}}}`,
		pd.APIMessages:    `{"stop_reason":"max_tokens","content":[],"usage":{"input_tokens":36,"cache_read_input_tokens":64}}`,
	} {
		a, err := memberAttempt(t, d, api, `{"prompt":"x"}`)
		if err != nil {
			t.Fatal(err)
		}
		h, err := a.Accept([]byte(answer))
		if err != nil {
			t.Fatalf("%s: %v", api, err)
		}
		if n, ok := h.(dialect.UsageCorrector).Cached(); n != 64 || !ok {
			t.Errorf("%s: %d, %v", api, n, ok)
		}
	}
}

// A prefill engine that ends a request by a stop token drops the KV cache, and so would any other.
func TestMooncakeEnded(t *testing.T) {
	d, _ := dialect.New("mooncake", dialect.Options{AskBootstrap: (&bootstrapServer{query: oneEngine}).ask, MooncakePort: dialect.MooncakePort})
	for answer, ended := range map[string]bool{
		`{"choices":[{"finish_reason":"stop"}]}`:                                       true,
		`{"choices":[{"text":"\"finish_reason\":\"length\"","finish_reason":"stop"}]}`: true,
		`{"choices":[{"finish_reason":"abort"}]}`:                                      false,
		`{"message":"x"}`: false,
	} {
		a, err := memberAttempt(t, d, pd.APICompletions, `{"prompt":"x"}`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Accept([]byte(answer)); errors.Is(err, dialect.ErrEnded) != ended || err == nil {
			t.Errorf("%s: %v", answer, err)
		}
	}
}
