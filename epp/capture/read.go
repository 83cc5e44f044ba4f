package capture

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// Capture is what files say, with all times since the first picker began to capture.
type Capture struct {
	Headers  []Header
	Loads    []Load    // complete, by snapshot
	Requests []Request // by arrival
	// Each has what each picker wrote, if there are several. A picker that was started anew is another one.
	Each []*Capture
}

// Pickers returns how many pickers wrote it at a time, at most.
func (c *Capture) Pickers() (most int) {
	for _, a := range c.Each {
		at, n := a.Headers[0].At, 0
		for _, b := range c.Each {
			if b.Headers[0].At <= at && b.ended() >= at {
				n++
			}
		}
		most = max(most, n)
	}
	return max(1, most)
}

// ended returns when the last request ended that is known of.
func (c *Capture) ended() (last int64) {
	for i := range c.Requests {
		r := &c.Requests[i]
		end, known := r.EndedAt()
		if !known {
			end = r.Arrived
		}
		last = max(last, end)
	}
	return last
}

// Begins reports whether a file that begins so is a capture.
func Begins(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte(`{"capture":`))
}

// maxLine bounds a line (bytes): a prompt of a million tokens has a hash for each 16.
const maxLine = 16 << 20

// Read reads a capture, or several one after the other. unusable is called with what is wrong with a line, and its number: if it
// returns nil, the line is left out, otherwise reading ends with its error.
func Read(r io.Reader, unusable func(error) error) (*Capture, error) {
	in := reading{capture: &Capture{}, pickers: map[time.Time]*picker{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for number := 1; lines.Scan(); number++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		err := in.line(line)
		if _, ends := errors.AsType[*mixed](err); ends {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if err != nil {
			if err := unusable(fmt.Errorf("line %d: %w", number, err)); err != nil {
				return nil, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return in.close()
}

// reading is a capture while it is read.
type reading struct {
	capture *Capture
	header  *Header // in force, nil before the first
	first   time.Time
	picker  *picker               // that wrote the lines now
	pickers map[time.Time]*picker // by their begin
	order   []*Capture
}

// picker is what one picker wrote.
type picker struct {
	capture *Capture
	loads   map[string]Load // the latest of each endpoint
}

// mixed says that files cannot be read together.
type mixed struct{ why string }

func (m *mixed) Error() string { return m.why }

func (in *reading) line(text []byte) error {
	first := json.NewDecoder(bytes.NewReader(text))
	if _, err := first.Token(); err != nil {
		return err
	}
	kind, err := first.Token()
	if err != nil {
		return err
	}
	if in.header == nil && kind != "capture" {
		return errors.New("it comes before the first header")
	}
	switch kind {
	case "capture":
		return in.readHeader(text)
	case "load":
		return in.readLoad(text)
	case "request":
		return in.readRequest(text)
	}
	return fmt.Errorf("it begins with %v, which no line of this version does", kind)
}

func (in *reading) readHeader(text []byte) error {
	var h Header
	if err := json.Unmarshal(text, &h); err != nil {
		return err
	}
	before := in.header
	switch {
	case h.Version != Version:
		return &mixed{fmt.Sprintf("the capture has version %d of the format, and this program reads version %d", h.Version, Version)}
	case before != nil && h.Key != before.Key:
		return &mixed{"the hashes were made with another key than those before: replay the files one by one, or give all pickers one --capture-key-file"}
	case before != nil && h.BlockTokens != before.BlockTokens:
		return &mixed{fmt.Sprintf("prompts are cut into blocks of %d tokens, and before into blocks of %d: replay the parts one by one", h.BlockTokens, before.BlockTokens)}
	case h.BlockTokens < 1:
		return &mixed{fmt.Sprintf("blocks of %d tokens cannot be", h.BlockTokens)}
	}
	if before == nil {
		in.first = h.Began
	}
	if in.picker = in.pickers[h.Began]; in.picker == nil {
		in.picker = &picker{&Capture{}, map[string]Load{}}
		in.pickers[h.Began], in.order = in.picker, append(in.order, in.picker.capture)
	}
	h.At += in.offset(&h)
	in.capture.Headers, in.picker.capture.Headers = append(in.capture.Headers, h), append(in.picker.capture.Headers, h)
	in.header = &h
	return nil
}

// offset returns how much later than the first picker the one of a header began, in µs.
func (in *reading) offset(h *Header) int64 { return h.Began.Sub(in.first).Microseconds() }

func (in *reading) readLoad(text []byte) error {
	var l Load
	if err := json.Unmarshal(text, &l); err != nil {
		return err
	}
	l.At += in.offset(in.header)
	if l.Same {
		last, known := in.picker.loads[l.Endpoint]
		if !known {
			return fmt.Errorf("the load of %s is said to be as before, and there is none before", l.Endpoint)
		}
		last.At, last.Snapshot = l.At, l.Snapshot
		l = last
	}
	in.picker.loads[l.Endpoint] = l
	in.capture.Loads, in.picker.capture.Loads = append(in.capture.Loads, l), append(in.picker.capture.Loads, l)
	return nil
}

// maxTokens bounds a length: no model has a longer context.
const maxTokens = 10_000_000

func (in *reading) readRequest(text []byte) error {
	var r Request
	if err := json.Unmarshal(text, &r); err != nil {
		return err
	}
	if r.InputTokens < 0 || r.InputTokens > maxTokens || r.OutputTokens > maxTokens {
		return fmt.Errorf("%d input and %d output tokens cannot be", r.InputTokens, r.OutputTokens)
	}
	r.Arrived += in.offset(in.header)
	in.capture.Requests, in.picker.capture.Requests = append(in.capture.Requests, r), append(in.picker.capture.Requests, r)
	return nil
}

func (in *reading) close() (*Capture, error) {
	c := in.capture
	if len(c.Requests) == 0 {
		return nil, errors.New("it has no requests")
	}
	c.sort()
	if len(in.order) > 1 {
		c.Each = in.order
		for _, one := range c.Each {
			one.sort()
		}
	}
	return c, nil
}

func (c *Capture) sort() {
	slices.SortStableFunc(c.Headers, func(a, b Header) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(c.Loads, func(a, b Load) int { return cmp.Compare(a.Snapshot, b.Snapshot) })
	slices.SortStableFunc(c.Requests, func(a, b Request) int { return cmp.Compare(a.Arrived, b.Arrived) })
}

// BlockTokens returns how many tokens a hash stands for.
func (c *Capture) BlockTokens() int { return c.Headers[0].BlockTokens }

// Asked returns the request as the picker had it. cut says how its prompt is cut: see epp.Prompt.
func (r *Request) Asked(blocks []uint64, blockTokens int) *epp.Request {
	mode, _ := pd.ParseMode([]string{r.Mode}) // an unknown one is auto
	asked := &epp.Request{API: apis[r.API], Model: r.Model, Stream: r.Stream, Mode: mode, Fit: request.FitLocal, SGLangSplits: r.SGLang,
		Priority: r.Priority, IfAvailable: r.Need, Bytes: r.InputBytes, Headers: hashed{r},
		Prompt: epp.Prompt{Tokens: r.InputTokens, Blocks: blocks, BlockTokens: blockTokens}}
	asked.Path = asked.API.Path()
	switch {
	case r.Split:
		asked.Fit = request.FitSplit
	case r.Doubted:
		asked.Fit = request.FitDoubted
	}
	return asked
}

// hashed are the headers of a request, as far as the capture has their hashes.
type hashed struct{ of *Request }

// Get implements epp.Headers.
func (h hashed) Get(name string) string {
	switch {
	case name == epp.HeaderFlow:
		return h.of.Flow
	case name == SessionHeaders[0]:
		return h.of.Session
	}
	return ""
}

// apis are all APIs by name.
var apis = func() map[string]pd.API {
	all := map[string]pd.API{}
	for _, a := range slices.Concat(pd.APIs(), []pd.API{pd.APISGLang}, pd.GRPCAPIs()) {
		all[a.String()] = a
	}
	return all
}()
