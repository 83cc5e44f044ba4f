package pd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Plan tells the sidecar what the picker decided, in HeaderPlan:
//
//	remote|local;id=<16 hex>;reason=<token>;strict=0|1;epp=<ms>[;report][;stage-<name>=<token> …][;prefill-ranks=<n>|-,…][;decode-rank=<n>][;source-tokens=<n>]
type Plan struct {
	Verdict Verdict // whether the prompt is computed on another pod
	ID      string  // 16 lower-case hex digits, made by the picker, one per request
	Reason  Reason
	Strict  bool          // never prefill locally: the client forced P/D without fallback
	EPP     time.Duration // last request byte at the picker → its answer
	Report  bool          // the picker reads trailers: send it the report on streams
	Stages  []PlanStage   // further stages that run on other pods, in their order; nil = none
	// PrefillRanks are the data-parallel ranks that are to compute the prompt, one for each candidate of HeaderPrefill, in its order;
	// nil = none is named. Only sidecars that say so in HeaderSidecarReads get ranks.
	PrefillRanks []Rank
	// DecodeRank is the rank that is to generate.
	DecodeRank Rank
	// SourceTokens is how many tokens of the prompt, from its beginning, the endpoint of HeaderSource has cached, as far as the picker
	// knows; 0 = not told. Only sidecars that say so in HeaderSidecarReads get it.
	SourceTokens int
}

// Rank is a data-parallel rank of one engine: its number plus one. The zero value names none: the sidecar or the engine chooses.
type Rank uint16

// maxRank is more than the data-parallel ranks of any engine.
const maxRank = 1 << 12

// RankOf returns the rank with a number, none if the number is impossible.
func RankOf(number int) Rank {
	if number < 0 || number >= maxRank {
		return 0
	}
	return Rank(number + 1)
}

// Number returns the rank's number, as engines count: from 0. ok is false if none is named.
func (r Rank) Number() (number int, ok bool) { return int(r) - 1, r > 0 }

// String returns the number, or - for none.
func (r Rank) String() string {
	if number, ok := r.Number(); ok {
		return strconv.Itoa(number)
	}
	return noRank
}

// noRank stands for a candidate without a rank among others.
const noRank = "-"

func parseRank(v string) (Rank, error) {
	number, err := strconv.ParseUint(v, 10, 16)
	if err != nil || number >= maxRank || len(v) > 1 && v[0] == '0' {
		return 0, fmt.Errorf("must be the number of a rank below %d", maxRank)
	}
	return RankOf(int(number)), nil
}

// parseRanks parses the ranks of prefill candidates.
func parseRanks(v string) (ranks []Rank, err error) {
	named := false
	for text := range strings.SplitSeq(v, ",") {
		var r Rank
		if text != noRank {
			if r, err = parseRank(text); err != nil {
				return nil, err
			}
			named = true
		}
		ranks = append(ranks, r)
	}
	if !named || len(ranks) > MaxTargets {
		return nil, fmt.Errorf("must name a rank, for at most %d candidates", MaxTargets)
	}
	return ranks, nil
}

// PlanStage is a stage of a request, besides decode and prefill, that runs on another pod.
type PlanStage struct {
	Name   string // lower-case letters and dashes
	Reason Reason // a reason for Remote
}

// stagePrefix is the prefix of plan members that are stages.
const stagePrefix = "stage-"

// maxStageName bounds the name of a stage (bytes).
const maxStageName = 16

// planIDLen is the length of a plan's id in hex digits (64 bits: no collision among the requests in flight in one pool).
const planIDLen = 16

// maxSourceTokens is more than the tokens of any prompt.
const maxSourceTokens = 1 << 30

// ParsePlan parses HeaderPlan. Every member but report, stages, ranks and source-tokens is required, each once. Unknown members, and reasons
// that do not explain the verdict, are errors.
func ParsePlan(value string) (Plan, error) {
	var p Plan
	var have int
	head, err := splitParams(value, func(name, v string) error {
		have++
		return p.set(name, v, &have)
	})
	if err != nil {
		return Plan{}, fmt.Errorf("reading %s: %w", HeaderPlan, err)
	}
	switch head {
	case "remote":
		p.Verdict = Remote
	case "local":
		p.Verdict = Local
	default:
		return Plan{}, fmt.Errorf("reading %s: must begin with remote or local", HeaderPlan)
	}
	if have != 4 {
		return Plan{}, fmt.Errorf("reading %s: needs id, reason, strict and epp", HeaderPlan)
	}
	if !p.Reason.Explains(p.Verdict) {
		return Plan{}, fmt.Errorf("reading %s: reason %q does not explain %s", HeaderPlan, p.Reason, p.Verdict)
	}
	return p, nil
}

func (p *Plan) set(name, v string, have *int) (err error) {
	switch name {
	case "id":
		if len(v) != planIDLen || strings.Trim(v, "0123456789abcdef") != "" {
			return errors.New("must be 16 hex digits in lower case")
		}
		p.ID = v
	case "reason":
		p.Reason = Reason(v)
	case "strict":
		p.Strict, err = parseBit(v)
	case "epp":
		p.EPP, err = parseMillis(v)
	case "report":
		*have--
		p.Report = true
		if v != "" {
			err = errors.New("takes no value")
		}
	case "prefill-ranks":
		*have--
		p.PrefillRanks, err = parseRanks(v)
	case "decode-rank":
		*have--
		p.DecodeRank, err = parseRank(v)
	case "source-tokens":
		*have--
		p.SourceTokens, err = strconv.Atoi(v)
		if err != nil || p.SourceTokens < 1 || p.SourceTokens > maxSourceTokens || v[0] == '0' || v[0] == '+' {
			err = fmt.Errorf("must be the number of tokens, 1 to %d", maxSourceTokens)
		}
	default:
		*have--
		err = p.addStage(name, v)
	}
	return err
}

func (p *Plan) addStage(name, v string) error {
	stage, ok := strings.CutPrefix(name, stagePrefix)
	switch {
	case !ok:
		return errUnknownParam
	case stage == "" || len(stage) > maxStageName || strings.Trim(stage, "abcdefghijklmnopqrstuvwxyz-") != "":
		return errors.New("must be named by lower-case letters and dashes")
	case !Reason(v).Explains(Remote):
		return fmt.Errorf("reason %q does not explain %s", v, Remote)
	}
	p.Stages = append(p.Stages, PlanStage{stage, Reason(v)})
	return nil
}

// String returns the plan in the form that ParsePlan parses.
func (p Plan) String() string {
	b := make([]byte, 0, 96)
	b = append(b, p.Verdict.String()...)
	b = append(append(b, ";id="...), p.ID...)
	b = append(append(b, ";reason="...), p.Reason...)
	b = append(b, ";strict="...)
	if p.Strict {
		b = append(b, '1')
	} else {
		b = append(b, '0')
	}
	b = appendMillis(append(b, ";epp="...), p.EPP)
	if p.Report {
		b = append(b, ";report"...)
	}
	for _, s := range p.Stages {
		b = append(append(append(b, ';'), stagePrefix...), s.Name...)
		b = append(append(b, '='), s.Reason...)
	}
	for i, r := range p.PrefillRanks {
		lead := ","
		if i == 0 {
			lead = ";prefill-ranks="
		}
		b = append(append(b, lead...), r.String()...)
	}
	if p.DecodeRank > 0 {
		b = append(append(b, ";decode-rank="...), p.DecodeRank.String()...)
	}
	if p.SourceTokens > 0 {
		b = strconv.AppendInt(append(b, ";source-tokens="...), int64(p.SourceTokens), 10)
	}
	return string(b)
}

func parseBit(v string) (bool, error) {
	switch v {
	case "0":
		return false, nil
	case "1":
		return true, nil
	}
	return false, errors.New("must be 0 or 1")
}

// parseMillis parses a non-negative decimal number of milliseconds, without sign or exponent, of at most one day: a stream
// has no time limit, and one of hours comes from a slow engine.
func parseMillis(v string) (time.Duration, error) {
	ms, err := strconv.ParseFloat(v, 64)
	if err != nil || strings.Trim(v, "0123456789.") != "" || ms > 86.4e6 {
		return 0, errors.New("must be milliseconds, 0 to 86400000")
	}
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Microsecond), nil
}

// appendMillis prints d in milliseconds with microsecond resolution and no trailing zeros.
func appendMillis(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, float64(d.Round(time.Microsecond))/float64(time.Millisecond), 'f', -1, 64)
}
