package replay

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/replay/engine"
)

// Kind is what engines are like.
type Kind struct {
	Engine   engine.Config
	Table    *engine.Table
	Hardware engine.Hardware
	Request  time.Duration // of a leg, besides the steps of its engine
}

// Variant is a kind of engine that some engines of a pool are: another GPU, or another quantization of the same model. The picker sees its name as
// the label epp.VariantLabel.
type Variant struct {
	Name    string
	Engines []string // patterns of path.Match for names of engines such as decode-0
	Cost    float64  // of an engine for an hour
	Kind
}

// variantOf returns the index of an engine's variant, the first one that names it; -1 if it has none.
func (o *Options) variantOf(name string) int {
	return slices.IndexFunc(o.Variants, func(v Variant) bool {
		return slices.ContainsFunc(v.Engines, func(pattern string) bool { return matches(pattern, name) })
	})
}

// kindOf returns what an engine is like.
func (o *Options) kindOf(name string) Kind {
	if i := o.variantOf(name); i >= 0 {
		return o.Variants[i].Kind
	}
	return Kind{o.Engine, o.Table, o.Hardware, o.Request}
}

// kinds returns what engines of the pool are like.
func (o *Options) kinds() (all []Kind) {
	for _, v := range o.Variants {
		all = append(all, v.Kind)
	}
	if len(all) == 0 {
		all = []Kind{{o.Engine, o.Table, o.Hardware, o.Request}}
	}
	return all
}

// checkVariants returns why the pool cannot have these variants; nil if it can.
func (o *Options) checkVariants() (err error) {
	if len(o.Variants) == 0 {
		return nil
	}
	for i := range o.Variants {
		v := &o.Variants[i]
		for _, pattern := range v.Engines {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return fmt.Errorf("variant %s: %q is no pattern of names", v.Name, pattern)
			}
		}
		switch {
		case v.Name == "" || len(v.Engines) == 0:
			return fmt.Errorf("variant %d has no name or no engines", i+1)
		case !(v.Cost > 0 && v.Cost < math.Inf(1)):
			return fmt.Errorf("variant %s cannot cost %v", v.Name, v.Cost)
		case v.Engine.TokenArrives != o.Variants[0].Engine.TokenArrives:
			return fmt.Errorf("the variants %s and %s have different schedulers, which cannot hand over to each other", o.Variants[0].Name, v.Name)
		}
	}
	o.Pool.each(func(name, _ string) {
		if err == nil && o.variantOf(name) < 0 {
			err = fmt.Errorf("%s is in no variant: if there are any, every engine is in one", name)
		}
	})
	switch {
	case err != nil:
	case o.Oracle:
		err = errors.New("the oracle knows only pools whose engines are alike")
	case o.Scaling != nil:
		err = errors.New("a pool that scales has no variants: nothing says which of them a new engine is")
	}
	return err
}

// Share is what one variant of a pool did.
type Share struct {
	Variant  string
	Engines  int
	Cost     float64 // of all its engines for an hour
	Requests int     // whose answers its engines generated
	Met      int     // of these, requests that met their SLO
	// Desired is how many engines the plugin replica-sizer of the first picker says at the end that there should be; 0 if it says none, or is not there.
	Desired int
}

// Shares returns what each variant of the pool did, in the order of Options.Variants; nil without variants.
func (r *Result) Shares(slo SLO) []Share {
	all := slices.Clone(r.shares)
	for i := range r.Records {
		one := &r.Records[i]
		if one.Refused || len(all) == 0 {
			continue
		}
		s := &all[r.shareOf[one.Decode]]
		s.Requests++
		if r.must(one, slo).Met(one) {
			s.Met++
		}
	}
	return all
}

// must returns what a request must meet. slo is for the requests of classes without an SLO of their own.
func (r *Result) must(one *Record, slo SLO) SLO {
	if len(r.Classes) == 0 {
		return slo
	}
	return r.Classes[one.Class].SLO.or(slo)
}

// sized notes in the result which sizes of the variants are wanted.
func (w *world) sized() {
	for _, size := range w.pickers[0].sizes() {
		if i := slices.IndexFunc(w.result.shares, func(s Share) bool { return s.Variant == size.Variant }); i >= 0 {
			w.result.shares[i].Desired = size.Desired
		}
	}
}

// priced notes in the result what the engines of the pool cost.
func (w *world) priced() {
	o, r := w.options, w.result
	if len(o.Variants) == 0 {
		return
	}
	r.shareOf = map[string]int{}
	for _, v := range o.Variants {
		r.shares = append(r.shares, Share{Variant: v.Name})
	}
	o.Pool.each(func(name, _ string) {
		i := o.variantOf(name)
		r.shareOf[name] = i
		r.shares[i].Engines++
		r.shares[i].Cost += o.Variants[i].Cost
	})
}
