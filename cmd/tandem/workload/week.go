package workload

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Week is how long the pattern of SpaceWeek is.
const Week = 7 * 24 * time.Hour

// What a week is like, as multiples of the mean rate of a working day.
const (
	daily        = 0.65            // how far the busiest and the quietest hour are from the mean
	busiest      = 15.0            // hour of the day
	weekend      = 0.55            // the sixth and the seventh day
	burstsADay   = 5.0             // on average, at random moments
	burstMost    = 0.8             // a burst has up to so much more than the rate of its time
	burstRise    = 3 * time.Minute // within which it rises
	burstLeast   = 5 * time.Minute // it lasts from so long
	burstLongest = 20 * time.Minute
	flash        = 5.0 // times the usual rate: once a week, on the fourth day
	flashRise    = 3 * time.Minute
	flashLast    = 20 * time.Minute
	flashFall    = 10 * time.Minute
	minute       = 60.0 // seconds in which the rate is taken to be even
)

// What an office's week is like, as multiples of the rate in its hours.
const (
	opens     = 9  // hour of a working day
	closes    = 17 // likewise
	outside   = 0.1
	dayVaries = 0.15 // by so much a day may be busier or quieter than the mean
)

// WeekShape returns the rate of each minute of a week, in any unit.
type WeekShape func(r *rand.Rand) []float64

// FlashAt is when the flash crowd of a week begins.
const FlashAt = 3*24*time.Hour + 11*time.Hour

// SpaceWeek sets when calls are due: as many in a second as rate, over whole weeks of a shape. The number of calls says how many weeks, or what
// part of one, they fill. In each minute they are a Poisson process. Only first turns are counted, as in Arrivals. days are the days of the week
// that follow one another, from 0.
func SpaceWeek(r *rand.Rand, calls []Call, of WeekShape, rate float64, days []int) {
	due := 0.0
	for from := 0; from < len(calls); {
		expected := r.ExpFloat64()
		for _, many := range minutes(r, of, rate, days) {
			for ; expected < many && from < len(calls); from++ {
				if calls[from].After == 0 {
					calls[from].Due = time.Duration((due + minute*expected/many) * float64(time.Second))
					expected += r.ExpFloat64()
				}
			}
			expected -= many
			due += minute
		}
	}
}

// OfWeek returns how many calls SpaceWeek spaces in one week, or in some of its days.
func OfWeek(r *rand.Rand, of WeekShape, rate float64, days []int) int {
	sum := 0.0
	for _, many := range minutes(r, of, rate, days) {
		sum += many
	}
	return max(1, int(sum))
}

// minutes returns how many calls are expected in each minute of some days of a week. rate is the mean of the whole week, in a second.
func minutes(r *rand.Rand, of WeekShape, rate float64, days []int) (all []float64) {
	shape, sum := of(r), 0.0
	for _, v := range shape {
		sum += v
	}
	const ofDay = 24 * 60
	for _, day := range days {
		for _, v := range shape[day*ofDay : (day+1)*ofDay] {
			all = append(all, v/sum*float64(len(shape))*rate*minute)
		}
	}
	return all
}

// UsualWeek has a daily pattern, a quiet weekend, bursts, and a flash crowd that is five times the usual load. It is a WeekShape.
func UsualWeek(r *rand.Rand) []float64 {
	shape := make([]float64, int(Week.Minutes()))
	for i := range shape {
		hour := float64(i) / 60
		shape[i] = 1 + daily*math.Cos(2*math.Pi*(hour-busiest)/24)
		if i/(24*60) >= 5 {
			shape[i] *= weekend
		}
	}
	usual := slices.Clone(shape)
	addBursts(r, shape)
	begin := int(FlashAt.Minutes())
	for i := range int((flashRise + flashLast + flashFall).Minutes()) {
		at := time.Duration(i) * time.Minute
		share := min(1, float64(at+time.Minute)/float64(flashRise), float64(flashRise+flashLast+flashFall-at)/float64(flashFall))
		shape[begin+i] += (flash - 1) * share * usual[begin+i]
	}
	return shape
}

// OfficeWeek has ten times the requests from nine to five of working days that it has at other hours, and bursts. Working days differ by a little. It
// is a WeekShape.
func OfficeWeek(r *rand.Rand) []float64 {
	shape := make([]float64, int(Week.Minutes()))
	for day := range 7 {
		level := 1 + dayVaries*(2*r.Float64()-1)
		for minute := range 24 * 60 {
			at := day*24*60 + minute
			shape[at] = outside
			if day < 5 && minute >= opens*60 && minute < closes*60 {
				shape[at] = level
			}
		}
	}
	addBursts(r, shape)
	return shape
}

// addBursts adds bursts at random moments of a week.
func addBursts(r *rand.Rand, shape []float64) {
	usual := slices.Clone(shape)
	for range int(burstsADay * 7) {
		from, lasts := r.IntN(len(shape)), int((burstLeast + time.Duration(r.Float64()*float64(burstLongest-burstLeast))).Minutes())
		high := burstMost * r.Float64()
		for i := from; i < min(len(shape), from+lasts); i++ {
			shape[i] += high * usual[i] * min(1, float64(i-from+1)/burstRise.Minutes())
		}
	}
}
