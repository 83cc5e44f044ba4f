package sched_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvfeed"
	"github.com/tandem-serving/tandem/epp/plugin/producer"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// chatTokens are those of a chat of 32 kB, and lastTurn of them are new.
const chatTokens, lastTurn, eventBlock = 8192, 128, 16

// BenchmarkPickPrecise is BenchmarkPick over 100 endpoints for a chat of 32 kB, of which the endpoint has all but the last turn: with an
// estimate of what engines have cached, and by KV events, for a request that carries its token ids. Both take turns, since the machine does
// not stay equally fast. ns/approx and ns/precise are the medians.
func BenchmarkPickPrecise(b *testing.B) {
	const endpoints, turn = 100, 16
	approx, precise := production(b), production(b)
	keep := &epp.Keep{Offline: true}
	defer keep.Close()
	built, err := producer.NewPrecisePrefixCache().Build(&epp.Builder{Name: "precise", Log: slog.New(slog.DiscardHandler), Keep: keep})
	if err != nil {
		b.Fatal(err)
	}
	matcher := built.(*producer.PreciseMatcher)
	precise.Matchers, precise.Picked = []epp.Matcher{matcher}, []epp.PickObserver{matcher}
	approx.Stale, precise.Stale = time.Hour, time.Hour
	pools := [2]*pool{half(endpoints), half(endpoints)}
	for _, e := range pools[1].Snapshot().Endpoints {
		matcher.EndpointJoined(e)
	}
	schedulers := [2]*sched.Scheduler{scheduler(b, pools[0], approx), scheduler(b, pools[1], precise)}
	var requests [2][]*epp.Request
	for i := range 16 {
		requests[0] = append(requests[0], chat(approx, i))
		requests[1] = append(requests[1], chat(precise, i))
		tell(b, matcher.Feed, pools[1].Snapshot().Endpoints[i], requests[1][i].Prompt.IDs[:chatTokens-lastTurn])
	}
	var took [2][]float64
	b.ReportAllocs()
	for b.Loop() {
		for way, s := range schedulers {
			began := time.Now()
			for j := range turn {
				d := mustPick(b, s, requests[way][j])
				d.Reservation.End()
				if way == 1 {
					matcher.Observe(&epp.Outcome{Decision: d})
				}
			}
			took[way] = append(took[way], float64(time.Since(began))/turn)
		}
	}
	for way, unit := range []string{"ns/approx", "ns/precise"} {
		slices.Sort(took[way])
		b.ReportMetric(took[way][len(took[way])/2], unit)
	}
}

// chat returns a request with a prompt of chatTokens, which no other request shares.
func chat(c sched.Config, number int) *epp.Request {
	r := splitRequest(chatTokens)
	needs := c.Matchers[0].Needs()
	r.Prompt.BlockTokens = needs.Tokens
	if needs.Tokens == 0 {
		r.Prompt.Blocks = nil
	}
	for i := range r.Prompt.Blocks {
		r.Prompt.Blocks[i] = uint64(number*100_000+i) * 0x9e3779b97f4a7c15
	}
	for i := range min(needs.IDs, chatTokens) {
		r.Prompt.IDs = append(r.Prompt.IDs, uint32(number*100_000+i))
	}
	return r
}

// tell has an endpoint's engine tell that it has the blocks of token ids, in MessagePack.
func tell(b *testing.B, feed *kvfeed.Feed, e *epp.Endpoint, ids []uint32) {
	b.Helper()
	array := func(m []byte, n int) []byte { return binary.BigEndian.AppendUint32(append(m, 0xdd), uint32(n)) }
	text := func(m []byte, s string) []byte { return append(append(m, 0xd9, byte(len(s))), s...) }
	m := array(nil, 2)
	m = append(array(append(m, 0), 1), 0x85)
	m = array(text(text(text(m, "type"), "BlockStored"), "block_hashes"), len(ids)/eventBlock)
	for i := range len(ids) / eventBlock {
		m = binary.BigEndian.AppendUint64(append(m, 0xcf), uint64(ids[0])<<20+uint64(i))
	}
	m = array(text(append(text(m, "parent_block_hash"), 0xc0), "token_ids"), len(ids))
	for _, id := range ids {
		m = binary.BigEndian.AppendUint32(append(m, 0xce), id)
	}
	m = append(text(m, "block_size"), eventBlock)
	if err := feed.Deliver(e, 0, make([]byte, 8), m); err != nil {
		b.Fatal(err)
	}
	if got := feed.State().Blocks; got == 0 {
		b.Fatal("the engine is not heard")
	}
}

// BenchmarkPickChat is the whole pick for a chat of 32 kB, over 100 endpoints: the chat is read, made the text of its prompt, and tokenized;
// what engines have of it is looked up; both profiles run with four scorers each. All messages are new, or all but the last one were seen and one
// endpoint has them. us-cpu/op is processor time, of the garbage collector too; us/p50 is the median.
func BenchmarkPickChat(b *testing.B) {
	for _, family := range []string{"qwen3", "llama3_2", "gemma3", "deepseek_v3"} {
		path := "../../.tools/vocabularies/" + family + "/tokenizer.json"
		if _, err := os.Stat(path); err != nil {
			b.Skip("make .tools/vocabularies")
		}
		keep := &epp.Keep{Offline: true}
		b.Cleanup(func() { _ = keep.Close() })
		builder := &epp.Builder{Name: "one", Log: slog.New(slog.DiscardHandler), Keep: keep}
		built, err := producer.NewPrecisePrefixCache().Build(builder)
		if err != nil {
			b.Fatal(err)
		}
		parameters := producer.NewToken().(*producer.Token)
		parameters.Local = &producer.TokenLocal{ModelTokenizerMap: map[string]string{family: path}}
		tokens, err := parameters.Build(builder)
		if err != nil {
			b.Fatal(err)
		}
		matcher := built.(*producer.PreciseMatcher)
		c := production(b)
		c.Matchers, c.Picked, c.Stale = []epp.Matcher{matcher}, []epp.PickObserver{matcher}, time.Hour
		c.Preparers = []epp.NamedPreparer{{Name: "tokens", Preparer: tokens.(epp.Preparer)}}
		pool := half(100)
		for _, e := range pool.Snapshot().Endpoints {
			matcher.EndpointJoined(e)
		}
		s := scheduler(b, pool, c)
		for _, kind := range []string{"cold", "next turn"} {
			b.Run(family+"/"+kind, func(b *testing.B) {
				body, places := conversation(family)
				pick := func() (*epp.Decision, *epp.Request) {
					r := splitRequest(8192)
					r.Model, r.API, r.Body = family, pd.APIChat, [][]byte{body}
					return mustPick(b, s, r), r
				}
				d, r := pick()
				d.Reservation.End()
				if len(r.Prompt.IDs) < 5000 {
					b.Fatalf("%d token ids", len(r.Prompt.IDs))
				}
				if kind == "next turn" {
					tell(b, matcher.Feed, pool.Snapshot().Endpoints[0], r.Prompt.IDs[:(len(r.Prompt.IDs)-20)/eventBlock*eventBlock])
					places = places[len(places)-1:]
				}
				took := make([]time.Duration, 0, 1<<20)
				b.ReportAllocs()
				start, n := processorTime(b), 0
				for ; b.Loop(); n++ {
					for _, place := range places {
						copy(place, fmt.Sprintf("%8d", n))
					}
					began := time.Now()
					d, _ := pick()
					if len(took) < cap(took) {
						took = append(took, time.Since(began))
					}
					d.Reservation.End()
					matcher.Observe(&epp.Outcome{Decision: d})
					if kind == "next turn" && d.Cached < 5000 {
						b.Fatalf("%d tokens are cached", d.Cached)
					}
				}
				b.ReportMetric(float64((processorTime(b)-start).Microseconds())/float64(n), "us-cpu/op")
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "us/p50")
			})
		}
	}
}

// conversation returns a chat of 32 kB, and the places of a number of eight digits in each of its messages.
func conversation(model string) (text []byte, places [][]byte) {
	text = fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"system","content":"You are a helpful assistant."}`, model)
	for i := range 40 {
		text = fmt.Appendf(text, `,{"role":%q,"content":"######## %s"}`, []string{"user", "assistant"}[i%2], strings.Repeat(`The quick brown fox jumps over the lazy dog, and func main() prints it.\n`, 11))
	}
	text = append(text, `,{"role":"user","content":"######## And now?"}]}`...)
	for i := range text {
		if bytes.HasPrefix(text[i:], []byte("########")) {
			places = append(places, text[i:i+8])
		}
	}
	return text, places
}

// processorTime returns what this process has taken.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
