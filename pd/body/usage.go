package body

// Usage is the token counts of an answer. -1 = not reported.
type Usage struct {
	Prompt     int64 // tokens of the prompt, cached ones among them
	Cached     int64 // how many of them were in the prefix cache
	Completion int64 // tokens generated
}

// NoUsage is the usage of an answer that reports none.
var NoUsage = Usage{Prompt: -1, Cached: -1, Completion: -1}

// Merge returns the larger of each count of u and a later event of the same stream, whose counts grow.
func (u Usage) Merge(later Usage) Usage {
	return Usage{
		Prompt:     max(u.Prompt, later.Prompt),
		Cached:     max(u.Cached, later.Cached),
		Completion: max(u.Completion, later.Completion),
	}
}

// The names of the counts in each API (chat and completions, responses, messages), and the places of the usage object: in the
// answer, in the event of responses that carries the whole answer, in the first event of messages.
var (
	usagePlaces = []string{"usage", "response.usage", "message.usage"}
	usageNames  = [...][]string{
		usagePrompt:     {"prompt_tokens", "input_tokens"},
		usageCached:     {"prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens"},
		usageCompletion: {"completion_tokens", "output_tokens"},
		usageRead:       {"cache_read_input_tokens"},
		usageCreated:    {"cache_creation_input_tokens"},
	}
	usageKey                = NewMark(`"usage"`, 'g')
	usageTable, usageCounts = newUsageTable()
)

// The counts in an answer. The last two are of the messages API, whose input_tokens leaves them out.
const (
	usagePrompt = iota
	usageCached
	usageCompletion
	usageRead
	usageCreated
)

// newUsageTable returns the table and, for each want, the count that it is.
func newUsageTable() (*Table, []int) {
	var wants []Want
	var counts []int
	for _, place := range usagePlaces {
		for count, names := range usageNames {
			for _, name := range names {
				wants = append(wants, Want{Path: place + "." + name, Sink: true})
				counts = append(counts, count)
			}
		}
	}
	return NewTable(wants...), counts
}

// UsageReader finds the usage in an answer, written in chunks or as single events. It must be Reset before use, and then
// allocates nothing. The value must not be copied after Reset.
type UsageReader struct {
	scan   Scanner
	sink   Sink
	counts [usageCreated + 1]int64
	number int64 // of the count that is being read, -1 = it is not an integer
}

// Reset prepares for a new answer.
func (r *UsageReader) Reset() {
	if r.sink == nil {
		r.sink = r.take
	}
	for i := range r.counts {
		r.counts[i] = -1
	}
	r.number = 0
	r.scan.Reset(usageTable, Limits{}, r.sink)
}

// Write reads the next chunk of an answer. The error is the scanner's; counts found before it stay.
func (r *UsageReader) Write(chunk []byte) (int, error) { return r.scan.Write(chunk) }

// Usage returns the counts found so far, and whether there are any.
func (r *UsageReader) Usage() (Usage, bool) {
	u := Usage{r.counts[usagePrompt], r.counts[usageCached], r.counts[usageCompletion]}
	read, created := r.counts[usageRead], r.counts[usageCreated]
	u.Cached = max(u.Cached, read)
	if u.Prompt >= 0 {
		u.Prompt += max(0, read) + max(0, created)
	}
	return u, u != NoUsage
}

// Event returns the usage in the data of one event. An event without usage, or with "usage":null, costs one text search.
func (r *UsageReader) Event(data []byte) (Usage, bool) {
	if !hasUsage(data) {
		return NoUsage, false
	}
	r.Reset()
	if _, err := r.Write(data); err != nil {
		return NoUsage, false
	}
	return r.Usage()
}

// hasUsage reports whether data has the text "usage", a colon and a brace.
func hasUsage(data []byte) bool {
	for {
		i := usageKey.Index(data)
		if i < 0 {
			return false
		}
		data = data[i+len(usageKey.text):]
		i = skipSpace(data, 0)
		if i == len(data) || data[i] != ':' {
			continue
		}
		if i = skipSpace(data, i+1); i < len(data) && data[i] == '{' {
			return true
		}
	}
}

// maxCount is above any count of tokens and far below an overflow.
const maxCount = 1 << 50

func (r *UsageReader) take(want int, piece []byte, last bool) {
	for _, c := range piece {
		if c < '0' || c > '9' || r.scan.Sinking() != Number || r.number < 0 || r.number > maxCount {
			r.number = -1
			break
		}
		r.number = r.number*10 + int64(c-'0')
	}
	if !last {
		return
	}
	if r.number >= 0 && r.scan.Sinking() == Number {
		r.counts[usageCounts[want]] = r.number
	}
	r.number = 0
}
