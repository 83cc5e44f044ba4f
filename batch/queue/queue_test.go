package queue

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// zOf is a claim that has ended.
func zOf(key string) goredis.Z { return goredis.Z{Score: 1, Member: key} }

func TestParse(t *testing.T) {
	const good = `{"request_kind":"plain","data":{"id":"a","deadline":1764045130,"payload":{"model":"m","prompt":"hi"}}}`
	if r := parse([]byte(good)); r.Problem != nil || r.ID != "a" || !r.Deadline.Equal(time.Unix(1764045130, 0)) || string(r.Payload) != `{"model":"m","prompt":"hi"}` {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct{ name, from, to, want string }{
		{"no JSON", good, "{", "llm-d's format"},
		{"not UTF-8", `"a"`, "\"\xff\"", "UTF-8"},
		{"without an envelope", good, `{"id":"a","deadline":1764045130,"payload":{"model":"m"}}`, "request_kind"},
		{"another kind", "plain", "other", "request_kind"},
		{"without an id", `"id":"a",`, "", "data.id"},
		{"a long id", `"id":"a"`, `"id":"` + strings.Repeat("a", maxID+1) + `"`, "data.id"},
		{"without a deadline", `"deadline":1764045130,`, "", "data.deadline"},
		{"milliseconds", "1764045130", "1764045130000", "data.deadline"},
		{"a fraction", "1764045130", "1.5", "data.deadline"},
		{"an unknown endpoint", `"id":"a"`, `"id":"a","endpoint":"/metrics"`, "data.endpoint"},
		{"no payload", `"payload":{"model":"m","prompt":"hi"}`, `"x":1`, "data.payload"},
		{"a list", `{"model":"m","prompt":"hi"}`, `[]`, "data.payload"},
		{"no model", `"model":"m",`, ``, "model"},
		{"streamed", `"prompt":"hi"`, `"stream":true`, "streamed"},
	} {
		r := parse([]byte(strings.Replace(good, c.from, c.to, 1)))
		if r.Problem == nil || !strings.Contains(r.Problem.Error(), c.want) {
			t.Errorf("%s: the problem is %v, want one about %s", c.name, r.Problem, c.want)
		}
	}
}

func TestReadFile(t *testing.T) {
	read := func(text string) ([]Config, error) {
		path := filepath.Join(t.TempDir(), "queues.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return ReadFile(path)
	}
	got, err := read("queues:\n- broker: redis://127.0.0.1:6379\n  queue: q\n  budget: {messages: 5, per: 1h}\n  hours: {from: '22:00', to: '06:00', zone: Europe/Berlin}\n")
	if err != nil || len(got) != 1 || got[0].Results != "result-list" || got[0].Endpoint != "/v1/completions" || got[0].Budget.Per != time.Hour || got[0].Hours.to != 6*time.Hour {
		t.Errorf("%+v, %v", got, err)
	}
	const good = "broker: redis://u:secret@127.0.0.1:6379\n  queue: q\n"
	for _, c := range []struct{ text, want string }{
		{"", "queues is missing"},
		{"queues:\n- queue: q\n", "broker is missing"},
		{"queues:\n- broker: amqp://127.0.0.1\n  queue: q\n", "broker has the scheme"},
		{"queues:\n- broker: redis://u:secret@127.0.0.1:x\n  queue: q\n", "broker is not"},
		{"queues:\n- broker: redis://127.0.0.1\n", "queue is missing"},
		{"queues:\n- " + good + "  deadLetters: dead\n", "not for Redis"},
		{"queues:\n- broker: nats://u:secret@127.0.0.1:4222/path\n  queue: q\n", "not an address like nats://"},
		{"queues:\n- broker: nats://127.0.0.1\n  queue: q\n  results: 'results.>'\n", "not a subject"},
		{"queues:\n- broker: nats://127.0.0.1\n  queue: q\n  deadLetters: $JS.API.STREAM.PURGE\n", "not a subject"},
		{"queues:\n- broker: nats://127.0.0.1\n  queue: q\n  otherResults: [a..b]\n", "not a subject"},
		{"queues:\n- broker: nats://127.0.0.1\n  queue: q\n  consumer: a.b\n", "durable consumer"},
		{"queues:\n- broker: kafka://u:secret@127.0.0.1:9092/path\n  queue: q\n", "not an address like kafka://"},
		{"queues:\n- broker: kafka://u:secret@127.0.0.1:9092?sasl=gssapi\n  queue: q\n", "sasl is unknown"},
		{"queues:\n- broker: kafka://127.0.0.1:9092?sasl=plain\n  queue: q\n", "no user"},
		{"queues:\n- broker: kafka://u:secret@127.0.0.1:9092?tls=1\n  queue: q\n", "parameters other than sasl"},
		{"queues:\n- broker: kafka://127.0.0.1:9092\n  queue: q\n  credentials: file\n", "not for Kafka"},
		{"queues:\n- " + good + "  gate: open\n", "gate not found"},
		{"queues:\n- " + good + "- " + good, "twice"},
		{"queues:\n- " + good + "  endpoint: /metrics\n", "endpoint is"},
		{"queues:\n- " + good + "  headers: [authorization]\n", "Authorization"},
		{"queues:\n- " + good + "  maxInFlight: -1\n", "maxInFlight"},
		{"queues:\n- " + good + "  budget: {messages: 5}\n", "budget needs"},
		{"queues:\n- " + good + "  hours: {from: '22:00', to: '6 am'}\n", "time of day"},
		{"queues:\n- " + good + "  hours: {from: '22:00', to: '22:00'}\n", "the same"},
		{"queues:\n- " + good + "  hours: {from: '22:00', to: '06:00', zone: Nowhere}\n", "zone"},
		{"queues:\n- " + good + "  saturation: {metrics: 'epp:9090', below: 0.8}\n", "not a URL"},
		{"queues:\n- " + good + "  saturation: {metrics: 'http://epp:9090/metrics'}\n", "below"},
	} {
		if _, err := read(c.text); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error is %v, want one about %q", c.text, err, c.want)
		}
	}
}

func TestHours(t *testing.T) {
	night := &Hours{From: "22:00", To: "06:00", Zone: "Europe/Berlin"}
	day := &Hours{From: "09:30", To: "17:00"}
	for _, h := range []*Hours{night, day} {
		if err := h.load(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		hours *Hours
		at    string // UTC; Berlin is an hour ahead in January, and two in July
		want  bool
	}{
		{night, "2026-01-10T20:59:59Z", false}, {night, "2026-01-10T21:00:00Z", true}, {night, "2026-01-11T04:59:59Z", true}, {night, "2026-01-11T05:00:00Z", false},
		{night, "2026-07-10T20:00:00Z", true}, {night, "2026-07-11T04:00:00Z", false},
		{day, "2026-01-10T09:29:59Z", false}, {day, "2026-01-10T09:30:00Z", true}, {day, "2026-01-10T17:00:00Z", false},
		{nil, "2026-01-10T17:00:00Z", true},
	} {
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.hours.open(at); got != c.want {
			t.Errorf("%+v at %s: %t", c.hours, c.at, got)
		}
	}
}

func TestBudget(t *testing.T) {
	now := time.Unix(1_764_000_000, 0)
	b := newBucket(&Budget{Messages: 3600, Per: time.Hour}, now)
	if got := b.take(1000, now); got != 360 {
		t.Errorf("a full bucket has %d, want a tenth", got)
	}
	if got := b.take(10, now.Add(1500*time.Millisecond)); got != 1 {
		t.Errorf("%d after 1.5 s, want 1", got)
	}
	if got := b.take(10, now.Add(2*time.Second)); got != 1 {
		t.Errorf("%d after another half second, want 1: fractions add up", got)
	}
	b.put(5)
	if got := b.take(10, now.Add(-time.Hour)); got != 5 {
		t.Errorf("%d of 5 that were returned, although the clock went back", got)
	}
	if got := newBucket(nil, now).take(7, now); got != 7 {
		t.Errorf("without a budget: %d", got)
	}
}
