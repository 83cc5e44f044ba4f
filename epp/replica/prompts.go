package replica

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// prompt is one that another replica has learned.
type prompt struct {
	Of     string `json:"of"` // the matcher, by SharedAs
	To     string `json:"to"` // the endpoint that computes it, by its namespace and name
	Blocks []byte `json:"blocks"`
}

// hashes returns the hashes of its blocks.
func (p *prompt) hashes() ([]uint64, error) {
	if len(p.Blocks)%8 != 0 || len(p.Blocks) > 8*maxBlocks {
		return nil, fmt.Errorf("it tells of a prompt with %d bytes of hashes", len(p.Blocks))
	}
	all := make([]uint64, 0, len(p.Blocks)/8)
	for at := 0; at < len(p.Blocks); at += 8 {
		all = append(all, binary.LittleEndian.Uint64(p.Blocks[at:]))
	}
	return all, nil
}

// SetMatchers has the exchange tell other replicas what these matchers learn, and these learn what others tell, in place of those before.
// Without Options.Secret it has no effect.
func (x *Exchange) SetMatchers(all []epp.SharedMatcher) {
	if x.o.Secret == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range x.matchers {
		m.Share(nil)
	}
	x.matchers = make(map[string]epp.SharedMatcher, len(all))
	for _, m := range all {
		name := m.SharedAs()
		x.matchers[name] = m
		m.Share(func(e *epp.Endpoint, blocks []uint64) { x.journal.add(name, e, blocks) })
	}
}

// addPrompts adds the prompts that the replica has not been told of, as many as the rate allows since the last line, and for how long the
// first of them has waited.
func (x *Exchange) addPrompts(l *line) {
	if !l.prompts {
		return
	}
	rate := int(promptRate * x.every() / time.Second)
	l.allowed = min(l.allowed+rate, rate)
	none := true
	for l.allowed > 0 {
		one, blocks, lost, ok := x.journal.next(&l.at, l.blocks[:0])
		l.blocks = blocks
		x.untold.Add(lost)
		if !ok {
			break
		}
		if none {
			l.text = strconv.AppendInt(append(l.text, `"waited_us":`...), time.Since(one.at).Microseconds(), 10)
			l.text = append(l.text, `,"prompts":[`...)
			none = false
		}
		l.addPrompt(&one)
	}
	if !none {
		l.text[len(l.text)-1] = ']'
		l.text = append(l.text, ',')
	}
}

func (l *line) addPrompt(one *learned) {
	l.bytes = l.bytes[:0]
	for _, hash := range l.blocks {
		l.bytes = binary.LittleEndian.AppendUint64(l.bytes, hash)
	}
	l.allowed -= len(l.bytes)
	of, _ := json.Marshal(one.matcher)     // a string cannot fail
	to, _ := json.Marshal(one.to.String()) // likewise
	l.text = append(append(l.text, `{"of":`...), of...)
	l.text = append(append(l.text, `,"to":`...), to...)
	l.text = append(l.text, `,"blocks":"`...)
	l.text = append(base64.StdEncoding.AppendEncode(l.text, l.bytes), `"},`...)
}

// learnable is a prompt of another replica, for the matcher that learns it.
type learnable struct {
	by     epp.SharedMatcher
	to     *epp.Endpoint
	blocks []uint64
	load   *epp.Load
}

// toLearn returns what matchers are to learn of what a replica tells. The caller holds mu.
func (x *Exchange) toLearn(r *remote, told *news, s *epp.Snapshot) (all []learnable, err error) {
	for i := range told.prompts {
		p := &told.prompts[i]
		blocks, err := p.hashes()
		if err != nil {
			return nil, err
		}
		by, at := x.matchers[p.Of], x.named[p.To]
		if by == nil || at == nil {
			x.unknown++
			continue
		}
		x.learned++
		all = append(all, learnable{by, at, blocks, &s.Loads[x.place[p.To]]})
	}
	if len(told.prompts) > 0 {
		r.waited = told.waited
	}
	return all, nil
}
