package latency

import (
	"math"
	"time"
)

// terms is the most terms that a time consists of.
const terms = 8

// vector has one number for each term. Unused ones are 0.
type vector [terms]float64

func (v *vector) dot(x *vector) (sum float64) {
	for i := range v {
		sum += v[i] * x[i]
	}
	return sum
}

// How fits forget and trust.
const (
	// keep is the share of its weight that an outcome keeps when the next one comes: the latest hundred count most.
	keep = 0.99
	// halfLife is the age at which an outcome has half its weight, whatever has come since.
	halfLife = 10 * time.Minute
	// noise is the relative error of a single outcome that is taken for usual: measured times of equal requests on one engine differ
	// by a fifth.
	noise = 0.2
	// far is how many times an outcome may be what was expected, or a part of that; others are taken for this. A single request that
	// waited for something that no term stands for, such as the first contact of two engines, must not move the weights far.
	far = 3.0
	// levelling is how many times as fast as weights the level of an engine is followed.
	levelling = 5
	// fade is the age of the latest outcome of an engine at which what is known of all engines counts as much for it. An engine that
	// was slow gets requests again, and the model finds out whether it still is.
	fade = 2 * time.Minute
	// least is the shortest time, in seconds, that relative errors refer to.
	least = 1e-3
)

// fit is the weights of the terms of one time, in seconds, fitted by least squares of relative errors. Old outcomes are forgotten, and
// the weights return to the prior.
type fit struct {
	a [terms][terms]float64 // sum of the products of terms
	b vector                // sum of the products of terms and times
	n float64               // outcomes, as far as they are not forgotten
	// level is the logarithm of how many times as long requests are expected to take lately as a usual engine needs for them.
	level float64
	off   float64   // sum of the squares of relative errors
	at    time.Time // of the latest outcome
	w     vector
}

// prior is what the weights are taken to be before there are outcomes.
type prior struct {
	usual vector // those of a usual engine
	w     vector
	scale vector  // what a weight may be; 0: the term is not used
	trust float64 // relative error of w, as a share of scale
}

// learn adds an outcome: the terms of a request, and its time in seconds.
func (f *fit) learn(now time.Time, p *prior, x *vector, seconds float64) {
	forget := keep
	if f.at.IsZero() {
		f.w = p.w
	} else {
		forget *= math.Exp2(-max(0, now.Sub(f.at).Seconds()) / halfLife.Seconds())
	}
	f.at = now
	expected := max(least, f.w.dot(x))
	seconds = min(max(seconds, expected/far), expected*far)
	off := (seconds - expected) / expected
	// Errors count as shares of what was expected. As shares of what came, an engine that has become slow would be taken for fast until the
	// last short time is forgotten. By the size of the request alone, the outcomes of an overloaded engine would count as if its times said
	// as much about a token as those of an idle one; its prompts then look so expensive that all go to prefill, also where that is overloaded too.
	weight := 1 / (expected * expected)
	// What was learnt while the engine was faster, or slower, is taken for a share of what is expected now: otherwise the outcomes of a fast
	// engine would outweigh those after it has become slow.
	level := math.Log(expected / max(least, p.usual.dot(x)))
	if f.n == 0 {
		f.level = level
	}
	before := f.level
	f.level += (1 - keep) * levelling * (level - f.level)
	forget *= math.Exp(2 * min(0, before-f.level))
	for i := range x {
		for j := range x {
			f.a[i][j] = f.a[i][j]*forget + weight*x[i]*x[j]
		}
		f.b[i] = f.b[i]*forget + weight*x[i]*seconds
	}
	f.n = f.n*forget + 1
	f.off = f.off*forget + off*off
	f.w = f.solve(p)
}

// solve returns the weights that fit best, none of them negative: no term saves time.
func (f *fit) solve(p *prior) vector {
	used := [terms]bool{}
	for i := range used {
		used[i] = p.scale[i] > 0
	}
	for {
		a, b := f.a, f.b
		for i := range a {
			if used[i] {
				// The prior counts as outcomes would that tell of this weight alone.
				tells := noise * noise / (p.trust * p.trust * p.scale[i] * p.scale[i])
				a[i][i] += tells
				b[i] += tells * p.w[i]
			}
		}
		w := eliminate(&a, &b, &used)
		lowest := 0
		for i := range w {
			if w[i] < w[lowest] {
				lowest = i
			}
		}
		if !(w[lowest] < 0) {
			return w
		}
		used[lowest] = false
	}
}

// eliminate solves a·w = b for the used weights. a is positive definite because of the prior.
func eliminate(a *[terms][terms]float64, b *vector, used *[terms]bool) (w vector) {
	for i := range a {
		if !used[i] {
			continue
		}
		for j := i + 1; j < terms; j++ {
			if !used[j] {
				continue
			}
			factor := a[j][i] / a[i][i]
			for k := i; k < terms; k++ {
				a[j][k] -= factor * a[i][k]
			}
			b[j] -= factor * b[i]
		}
	}
	for i := terms - 1; i >= 0; i-- {
		if !used[i] {
			continue
		}
		sum := b[i]
		for j := i + 1; j < terms; j++ {
			if used[j] {
				sum -= a[i][j] * w[j]
			}
		}
		w[i] = sum / a[i][i]
	}
	return w
}

// spread returns the usual relative error of a single time.
func (f *fit) spread() float64 {
	const before = 5 // outcomes that noise counts for
	return math.Sqrt((f.off + before*noise*noise) / (f.n + before))
}
