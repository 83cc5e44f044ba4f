package lease

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd/dialect"
)

// plain is a made-up dialect: its side channel answers with lines, and its notices are words.
type plain struct{ dialect.Dialect }

func (plain) Notices() dialect.Notices { return plain{} }
func (plain) Agents() dialect.Agents   { return plain{} }

// Renewal is shorter than vLLM's.
func (plain) Renewal(lease time.Duration) time.Duration { return lease / 2 }

func (plain) Names(id string) bool     { return id != "" }
func (plain) Release(id string) []byte { return []byte("free " + id) }
func (plain) Heartbeats(ids []string, _ int) [][]byte {
	return [][]byte{[]byte("keep " + strings.Join(ids, " "))}
}

func (plain) Question(pipeline, tensor int) (question []byte, limit int) {
	return []byte{'?', byte(pipeline), byte(tensor)}, 1 << 10
}

func (plain) Answer(parts [][]byte) (engineID string, agent []byte, err error) {
	id, agent, _ := bytes.Cut(parts[0], []byte("\n"))
	return string(id), agent, nil
}

// A registry knows no engine but through its dialect: how ranks are asked for, what is sent to them, and how long that lasts.
func TestAnotherDialect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1", 2, 1)
		w.put("10.0.0.1:5600", func(conn net.Conn) {
			_, tensor, err := listen(conn)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte(routerReady + "\x01\x00" + frameOf("e\n"+string(p.ranks[tensor].Metadata()))))
		})
		b := w.registry(func(c *Config) { c.Noticer = plain{} })
		h := b.Hold(p.handoff(t, "a,b"), time.Now())
		time.Sleep(term/4 + time.Millisecond) // half a renewal
		synctest.Wait()
		p.only(t, "keep a,b")
		if got, want := time.Until(h.Until()), term-term/4; got > want {
			t.Errorf("kept for %s more, want at most %s", got, want)
		}
		time.Sleep(term / 2)
		synctest.Wait()
		p.only(t, "keep a,b", "keep a,b")
		if got, least := time.Until(h.Until()), term/4; got < least-time.Millisecond {
			t.Errorf("kept for %s more, want at least %s: the engine renews for half a lease", got, least)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.only(t, "free a,b")
		b.Close()
	})
}
