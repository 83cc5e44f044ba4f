package capture

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Version is the version of the format. It changes if older readers would misread a capture.
const Version = 1

// Header says how the picker is set up. Every file begins with one; another one follows when the configuration or the endpoints
// change. It holds for picks with the same or a later snapshot, until the next one.
type Header struct {
	Version     int        `json:"capture"`
	Began       time.Time  `json:"began"` // when the picker began to capture: all times are µs since then
	At          int64      `json:"at_us"`
	Snapshot    uint64     `json:"snapshot"`     // of the pool
	Key         string     `json:"key"`          // names the key of the hashes: equal names, comparable hashes
	Digest      string     `json:"digest"`       // of the configuration
	Config      string     `json:"config"`       // the configuration itself
	Seed        uint64     `json:"seed,string"`  // of the random numbers that break ties
	BlockTokens int        `json:"block_tokens"` // that one hash of a prompt stands for
	Endpoints   []Endpoint `json:"endpoints"`    // in the order of the pool
}

// Endpoint is one endpoint of the pool.
type Endpoint struct {
	Name   string            `json:"name"` // namespace/name
	Role   string            `json:"role"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Load is what the metrics page of an endpoint said, from a snapshot on.
type Load struct {
	Endpoint    string             `json:"load"` // its name
	Snapshot    uint64             `json:"snapshot"`
	At          int64              `json:"at_us"`          // when the page was read
	Same        bool               `json:"same,omitempty"` // what follows is as in the line before of this endpoint, and left out
	Unread      bool               `json:"unread,omitempty"`
	Unreachable bool               `json:"unreachable,omitempty"`
	Mode        string             `json:"engine_mode,omitempty"`
	Engine      string             `json:"engine,omitempty"`
	Signals     map[string]float64 `json:"signals,omitempty"`
	Requests    int                `json:"sent_requests,omitempty"` // of this picker, in flight when the page was asked for
	Tokens      int                `json:"sent_tokens,omitempty"`
	Batch       float64            `json:"batch,omitempty"` // requests that the engine is known to run at once
	Cache       epp.CacheInfo      `json:"cache,omitzero"`
	Ranks       *epp.Ranks         `json:"ranks,omitempty"`
	LoRA        *epp.LoRA          `json:"lora,omitempty"`
	Attributes  *epp.Attributes    `json:"attributes,omitempty"`
	Further     *epp.Further       `json:"further,omitempty"`
}

// Request is one request.
type Request struct {
	Number   uint64 `json:"request"`  // of the pick, from 1: with the seed it determines the random choices; 0: it was refused before
	Arrived  int64  `json:"at_us"`    // when all of it had arrived
	Snapshot uint64 `json:"snapshot"` // that the pick saw
	API      string `json:"api"`
	Model    string `json:"model"`
	Stream   bool   `json:"stream,omitempty"`
	Mode     string `json:"mode"` // P/D mode that the client asked for
	Split    bool   `json:"splittable"`
	SGLang   bool   `json:"sglang_splits,omitempty"` // engines of SGLang could share it although it is not splittable
	Doubted  bool   `json:"doubted,omitempty"`       // the engine may refuse it
	Need     bool   `json:"if_available,omitempty"`  // it is refused rather than computed where nothing of it is cached
	Subset   bool   `json:"subset,omitempty"`        // the gateway allowed only a part of the pool
	Priority int    `json:"priority,omitempty"`
	Flow     string `json:"flow,omitempty"`    // hash of the fairness id
	Session  string `json:"session,omitempty"` // hash of the session

	InputTokens  int     `json:"input_tokens"` // as the picker knew it
	InputBytes   int64   `json:"input_bytes"`  // of the body
	OutputTokens int64   `json:"output_tokens"`
	EngineTokens int64   `json:"engine_input_tokens"`  // as the engine counted them
	EngineCached int64   `json:"engine_cached_tokens"` // of these, in its prefix cache
	Blocks       []int64 `json:"blocks"`               // hashes of the prompt's whole blocks; each stands for all before it too
	Media        int     `json:"media,omitempty"`      // images, audio and video

	Verdict string `json:"verdict"` // local, remote or refused
	Reason  string `json:"reason"`
	Picks   []Pick `json:"picks,omitempty"`

	Phases Phases `json:"phases"`
	Status int    `json:"status"`           // of the answer; 0: it never came, or is not known
	Served string `json:"served,omitempty"` // name of the endpoint that served; "": not known
}

// Pick is what was picked for one stage.
type Pick struct {
	Stage     string   `json:"stage"`
	Endpoints []string `json:"endpoints"` // names, best first
	// What the pick knew of the first one: requests and tokens in flight, and tokens of the prompt in its prefix cache.
	Requests int `json:"inflight_requests"`
	Tokens   int `json:"inflight_tokens"`
	Cached   int `json:"cached_tokens"`
}

// Phases are times in µs; -1 = not known.
type Phases struct {
	Queue    int64 `json:"queue_us"` // it waited for capacity
	Pick     int64 `json:"pick_us"`  // from its last byte to the picker's answer, without queue
	Answered int64 `json:"ttft_us"`  // from its arrival to the headers of the answer: the first token, if it is streamed
	Total    int64 `json:"total_us"` // from its arrival to the end
}

// AnsweredAt returns when the headers of the answer came, in µs since the capture began; ok is false if none came.
func (r *Request) AnsweredAt() (at int64, ok bool) {
	return r.Arrived + r.Phases.Answered, r.Phases.Answered >= 0
}

// EndedAt returns when the request ended, in µs since the capture began; ok is false if that is not known.
func (r *Request) EndedAt() (at int64, ok bool) {
	return r.Arrived + r.Phases.Total, r.Phases.Total >= 0
}

// PickedAt returns when the pick began, in µs since the capture began.
func (r *Request) PickedAt() int64 { return r.Arrived + max(0, r.Phases.Queue) }
