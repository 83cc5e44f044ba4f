package scale

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Pattern configures what is learnt of the time of day. The zero value learns nothing.
type Pattern struct {
	Days Days
	Zone *time.Location // of the hours and the days; nil: UTC
	// Share is which part of the latest days had at least the demand that is forecast, more than 0 and less than 1.
	Share float64
}

// Days says which days are taken to be alike.
type Days string

const (
	DaysAlike   Days = "alike"   // every day is like those before
	DaysWeekend Days = "weekend" // Saturdays and Sundays are like each other, and so are the other days
	DaysOfWeek  Days = "week"    // every day is like the same day of the weeks before
)

// kind numbers the days that are alike, from 0 to 6.
func (d Days) kind(day time.Weekday) int {
	switch {
	case d == DaysOfWeek:
		return int(day)
	case d == DaysWeekend && (day == time.Saturday || day == time.Sunday):
		return 1
	}
	return 0
}

// amounts are what requests ask of a pool in a second.
type amounts [3]float64

// The parts of amounts.
const (
	ofRequests = iota
	ofPrompts  // tokens of prompts that are computed
	ofAnswers  // tokens of answers
)

const (
	bucketTime   = 10 * time.Minute
	bucketsOfDay = int(24 * time.Hour / bucketTime)
	keptDays     = 5    // of each kind, besides the present one: those that a forecast goes by
	leastDays    = 2    // of which the demand of a bucket must be known, before it has an effect
	enoughKnown  = 0.5  // of the time of a bucket must have been seen
	longestTook  = 4    // Intervals: what came in a longer time is not known to have come at one hour
	mostGuesses  = 16   // buckets that the trend has forecast and that have not ended: replicas start within an hour
	relied       = 0.5  // confidence from which the pattern counts
	recentScores = 6    // buckets, an hour: a pattern that was wrong in them does not count
	wrong        = 0.1  // of what the pattern says now: by so much on average it must have been too high in them for that
	leastScored  = 3    // days, of which the one that the pattern was most wrong about is left out
	steep        = 1.25 // times what was usual before: a rise
	halfBucket   = bucketTime / 2
	noticed      = 2 * time.Minute // after a rise, the trend knows of it
)

// pattern learns how the demand depends on the time of day, and whether forecasts by it are better than those of the trend. What it keeps is
// bounded: at most six days of each of seven kinds, 14 KiB a kind.
type pattern struct {
	Pattern
	kinds   [7]kindOfDay
	open    bucketAt      // that has not ended
	opened  time.Time     // a moment in it; zero: there is none
	ready   time.Duration // how far ahead the trend forecasts
	guesses []guess
	scores  []score // of the latest buckets, the latest last
}

// bucketAt names a bucket of a day.
type bucketAt struct {
	day    int // since 1970, by the calendar of the zone
	kind   int
	bucket int // of the day, from 0
}

// kindOfDay is days that are taken to be alike, the earliest first.
type kindOfDay struct{ days []*day }

type day struct {
	number  int
	buckets [bucketsOfDay]bucket
	score   score
}

// bucket sums up the demand in ten minutes of a day.
type bucket struct {
	seconds float32 // that were seen
	sum     [len(amounts{})]float32
}

// mean returns the mean of a bucket; known is false if too little of the bucket was seen.
func (b *bucket) mean() (d amounts, known bool) {
	if float64(b.seconds) < enoughKnown*bucketTime.Seconds() {
		return d, false
	}
	for i := range d {
		d[i] = float64(b.sum[i] / b.seconds)
	}
	return d, true
}

// guess is what the trend expected of a bucket, as the sum of several forecasts.
type guess struct {
	of  bucketAt
	n   float64
	sum amounts
}

// score is how forecasts by the pattern have fared, as sums over buckets.
type score struct {
	added  amounts // by which the pattern said more than the trend had expected
	useful amounts // of what was added, how much came
}

func (s *score) add(o *score) {
	for i := range s.added {
		s.added[i] += o.added[i]
		s.useful[i] += o.useful[i]
	}
}

func newPattern(c Pattern) *pattern {
	if c.Zone == nil {
		c.Zone = time.UTC
	}
	return &pattern{Pattern: c}
}

// at returns the bucket of a moment. Of an hour that daylight saving time repeats, the buckets are the same.
func (p *pattern) at(t time.Time) bucketAt {
	t = t.In(p.Zone)
	year, month, date := t.Date()
	hour, minute, _ := t.Clock()
	number := time.Date(year, month, date, 0, 0, 0, 0, time.UTC).Unix() / int64((24*time.Hour)/time.Second)
	return bucketAt{int(number), p.Days.kind(t.Weekday()), (hour*60 + minute) / int(bucketTime/time.Minute)}
}

// learn takes the demand of the time until now, and what the trend expects of a later moment.
func (p *pattern) learn(now time.Time, took time.Duration, came amounts, later time.Time, expected amounts) {
	middle := now.Add(-took / 2)
	at := p.at(middle)
	if p.opened.IsZero() || at != p.open {
		if !p.opened.IsZero() {
			p.judge(p.opened)
		}
		p.forget(at)
		p.open, p.opened = at, middle
	}
	p.ready = later.Sub(now)
	p.guess(p.at(later), expected)
	if took > longestTook*Interval {
		return
	}
	b := &p.today(at).buckets[at.bucket]
	b.seconds += float32(took.Seconds())
	for i := range came {
		b.sum[i] += float32(came[i] * took.Seconds())
	}
}

// forget drops what a bucket that begins makes useless: forecasts of earlier ones, and, after a step of the clock, days that have not come yet.
func (p *pattern) forget(at bucketAt) {
	p.guesses = slices.DeleteFunc(p.guesses, func(g guess) bool {
		return g.of.day < at.day || g.of.day == at.day && g.of.bucket < at.bucket
	})
	for i := range p.kinds {
		k := &p.kinds[i]
		k.days = slices.DeleteFunc(k.days, func(d *day) bool { return d.number > at.day })
	}
}

// guess notes what the trend expects of a bucket.
func (p *pattern) guess(of bucketAt, expected amounts) {
	i := slices.IndexFunc(p.guesses, func(g guess) bool { return g.of == of })
	if i < 0 {
		if len(p.guesses) == mostGuesses {
			p.guesses = slices.Delete(p.guesses, 0, 1)
		}
		i, p.guesses = len(p.guesses), append(p.guesses, guess{of: of})
	}
	g := &p.guesses[i]
	g.n++
	for k := range expected {
		g.sum[k] += expected[k]
	}
}

// today returns the day of a bucket.
func (p *pattern) today(at bucketAt) *day {
	k := &p.kinds[at.kind]
	if n := len(k.days); n > 0 && k.days[n-1].number == at.day {
		return k.days[n-1]
	}
	if k.days = append(k.days, &day{number: at.day}); len(k.days) > keptDays+1 {
		k.days = slices.Delete(k.days, 0, 1)
	}
	return k.days[len(k.days)-1]
}

// usual returns the demand that the wanted share of the latest days had at least in a bucket, and of how many days it is known. The day itself does not count.
func (p *pattern) usual(at bucketAt) (d amounts, days int) {
	var seen [len(d)][]float64
	all := p.kinds[at.kind].days
	for i := len(all) - 1; i >= 0 && days < keptDays; i-- {
		if all[i].number >= at.day {
			continue
		}
		if one, known := all[i].buckets[at.bucket].mean(); known {
			days++
			for k := range one {
				seen[k] = append(seen[k], one[k])
			}
		}
	}
	if days == 0 {
		return d, 0
	}
	for k := range d {
		slices.Sort(seen[k])
		d[k] = seen[k][min(days-1, int(math.Round((1-p.Share)*float64(days))))]
	}
	return d, days
}

// rise returns the usual demand of the bucket of a moment, as far as it is usually much more than it was when the trend forecast it, a start of a replica
// before, and of how many days it is known. Of what has risen before that, the trend knows more: how busy today is.
func (p *pattern) rise(t time.Time, ready time.Duration) (d amounts, days int) {
	d, days = p.usual(p.at(t))
	least := d
	for back := bucketTime; back < ready+noticed+bucketTime; back += bucketTime {
		if before, known := p.usual(p.at(t.Add(-back))); known > 0 {
			for k := range before {
				least[k] = min(least[k], before[k])
			}
		}
	}
	for k := range d {
		if d[k] < steep*least[k] {
			d[k] = 0
		}
	}
	return d, days
}

// judge scores the pattern by the bucket of a moment, which has ended.
func (p *pattern) judge(t time.Time) {
	at := p.at(t)
	today := p.today(at)
	came, known := today.buckets[at.bucket].mean()
	usual, days := p.rise(t, p.ready)
	i := slices.IndexFunc(p.guesses, func(g guess) bool { return g.of == at })
	var s score
	if known && days > 0 && i >= 0 {
		for k := range usual {
			trend := p.guesses[i].sum[k] / p.guesses[i].n
			s.added[k] = max(0, usual[k]-trend)
			s.useful[k] = max(0, min(came[k]-trend, s.added[k]))
		}
	}
	today.score.add(&s)
	p.scores = append(p.scores, s)
	p.scores = p.scores[max(0, len(p.scores)-recentScores):]
}

// confidence returns, of what the pattern would have added to forecasts of the trend in the latest days of a kind, the share that came: 0..1. The day
// that it was most wrong about, such as a holiday, is left out.
func (p *pattern) confidence(kind, part int) float64 {
	var all score
	var worst *score
	scored := 0
	waste := func(s *score) float64 { return s.added[part] - s.useful[part] }
	for _, d := range p.kinds[kind].days {
		if d.score.added[part] == 0 {
			continue
		}
		scored++
		all.add(&d.score)
		if worst == nil || waste(&d.score) > waste(worst) {
			worst = &d.score
		}
	}
	added, useful := all.added[part], all.useful[part]
	if scored >= leastScored {
		added, useful = added-worst.added[part], useful-worst.useful[part]
	}
	if added <= 0 {
		return 0
	}
	return max(0, min(useful/added, 1))
}

// isWrong reports whether the pattern has been wrong in the latest hour, by much of what it says now: today may be a holiday.
func (p *pattern) isWrong(part int, says float64) bool {
	var s score
	for i := range p.scores {
		s.add(&p.scores[i])
	}
	added, useful := s.added[part], s.useful[part]
	return useful < relied*added && (added-useful)/recentScores > wrong*says
}

// foresight is what the pattern says of the time until a replica that is started now would serve.
type foresight struct {
	usual      amounts // the highest of the buckets of that time
	held       amounts // of these, those that count: 0 for the others
	relied     amounts // of these, those of buckets in which the load rises
	confidence float64 // in the number of requests, on a day such as that on which the replica would serve
	inUse      bool
}

// ahead returns what the pattern says of the time from now until a replica that is started now would serve. The last bucket begins half of one later: its load may have
// begun in the middle of it.
func (p *pattern) ahead(now time.Time, ready time.Duration) (f foresight) {
	until := now.Add(ready + halfBucket)
	for t := now; ; t = t.Add(bucketTime) {
		if t.After(until) {
			t = until
		}
		at := p.at(t)
		usual, days := p.usual(at)
		rise, _ := p.rise(t, ready)
		for k := range usual {
			if days < leastDays {
				break
			}
			f.usual[k] = max(f.usual[k], usual[k])
			if p.confidence(at.kind, k) >= relied && !p.isWrong(k, usual[k]) {
				f.held[k], f.relied[k], f.inUse = max(f.held[k], usual[k]), max(f.relied[k], rise[k]), true
			}
		}
		if !t.Before(until) {
			f.confidence = p.confidence(at.kind, ofRequests)
			return f
		}
	}
}

// foreseen is what was forecast at the latest interval, for when a replica that was started then would serve.
type foreseen struct {
	byTrend   float64 // requests in a second
	byPattern foresight
}

// learnPattern has a pattern be learnt as configured. What was learnt before is kept if it is of the same hours and days.
func (d *demand) learnPattern(c Pattern) {
	d.foreseen = foreseen{}
	switch p := d.pattern; {
	case c.Days == "":
		d.pattern = nil
	case p != nil && p.Days == c.Days && p.Zone.String() == c.Zone.String():
		p.Share = c.Share
	default:
		d.pattern = newPattern(c)
	}
}

// foresee has the pattern learn the interval until now, and forecasts by it. load is what the trend expects when a new replica would serve.
func (d *demand) foresee(load *Load, now time.Time, took, ready time.Duration) {
	d.foreseen.byTrend = load.Rate
	if d.pattern == nil {
		return
	}
	came := *load
	came.Rate = d.counts[len(d.counts)-1] / Interval.Seconds() * d.mix.pickers()
	d.pattern.learn(now, took, came.amounts(), now.Add(ready), load.amounts())
	d.foreseen.byPattern = d.pattern.ahead(now, ready)
}

// Descriptions of the metrics of patterns.
var (
	forecastDesc = prometheus.NewDesc("tandem_forecast_requests_per_second",
		"Requests in a second that are expected when a replica that is started now would serve, by the trend of the latest minutes, and by what is usual at that time of day.",
		[]string{"variant", "prefill_variant", "by"}, nil)
	confidenceDesc = prometheus.NewDesc("tandem_pattern_confidence",
		"Of the requests by which forecasts by the time of day would have exceeded those by the trend in the latest days of the same kind, the share that came.",
		[]string{"variant", "prefill_variant"}, nil)
	inUseDesc = prometheus.NewDesc("tandem_pattern_in_use",
		"Whether sizes go by the time of day now (1) or by the trend alone (0).", []string{"variant", "prefill_variant"}, nil)
)

// collectPattern collects the forecasts for requests that variants of both roles are the cheapest for, if a pattern is learnt. The caller holds the mutex of the state.
func (d *demand) collectPattern(ch chan<- prometheus.Metric, decode, prefill string) {
	if d.pattern == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	by := &d.foreseen.byPattern
	used := 0.0
	if by.inUse {
		used = 1
	}
	gauge(forecastDesc, d.foreseen.byTrend, decode, prefill, "trend")
	gauge(forecastDesc, by.usual[ofRequests], decode, prefill, "pattern")
	gauge(confidenceDesc, by.confidence, decode, prefill)
	gauge(inUseDesc, used, decode, prefill)
}

// mostStretched bounds by how much prompts and answers are taken to become longer or shorter.
const mostStretched = 4

// amounts returns what a load asks for. Answers that were begun before are not in it.
func (l *Load) amounts() amounts { return amounts{l.Rate, l.Rate * l.computed(), l.Rate * l.Answer} }

// computed returns the mean tokens of a prompt that are computed.
func (l *Load) computed() (mean float64) {
	for _, p := range l.Prompts {
		mean += p.Share * p.Tokens
	}
	return mean
}

// raise has the load be at least a demand, of which parts that are 0 say nothing. Prompts and answers become longer or shorter for it, each by the
// same factor: the sums are right, while single ones may be longer at that hour.
func (l *Load) raise(to amounts) {
	now := l.amounts()
	l.Rate = max(l.Rate, to[ofRequests])
	if l.Rate <= 0 {
		return
	}
	stretch := func(part int, mean float64) float64 {
		if to[part] <= 0 || mean <= 0 {
			return 1
		}
		return max(1.0/mostStretched, min(max(now[part], to[part])/l.Rate/mean, mostStretched))
	}
	prompts := stretch(ofPrompts, l.computed())
	l.Answer *= stretch(ofAnswers, l.Answer)
	l.Prompt *= prompts
	l.Prompts = slices.Clone(l.Prompts)
	for i := range l.Prompts {
		l.Prompts[i].Tokens *= prompts
	}
}
