package workload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Class is a kind of calls. In a file, classes are a list; unknown members are refused.
type Class struct {
	Name     string        `yaml:"name"`
	Share    float64       `yaml:"share"`    // of the sessions, relative to those of the others
	Priority int           `yaml:"priority"` // 0 and more, or negative for requests that may be refused
	Flow     string        `yaml:"fairnessId"`
	Model    string        `yaml:"model"` // LoRA adapter; "": none
	TTFT     time.Duration `yaml:"sloTtft"`
	TPOT     time.Duration `yaml:"sloTpot"`
}

// ReadYAML reads a file that must not be empty, and refuses unknown members.
func ReadYAML(data []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	err := d.Decode(into)
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it is empty")
	case err != nil:
		said := strings.TrimPrefix(err.Error(), "yaml: ") // of several problems, each has a line
		return errors.New(strings.ReplaceAll(strings.TrimPrefix(said, "unmarshal errors:\n  "), "\n ", ";"))
	}
	return nil
}

// maxClasses bounds a file of classes.
const maxClasses = 1000

// ReadClasses reads a file of classes. Their shares are 1 where none is given.
func ReadClasses(data []byte) (all []Class, err error) {
	if err := ReadYAML(data, &all); err != nil {
		return nil, err
	}
	if len(all) == 0 || len(all) > maxClasses {
		return nil, fmt.Errorf("it has %d classes, want 1 to %d", len(all), maxClasses)
	}
	for i := range all {
		c := &all[i]
		if c.Share == 0 {
			c.Share = 1
		}
		switch {
		case c.Name == "":
			return nil, fmt.Errorf("class %d has no name", i+1)
		case slices.ContainsFunc(all[:i], func(o Class) bool { return o.Name == c.Name }):
			return nil, fmt.Errorf("there are two classes %q", c.Name)
		case !(c.Share > 0 && c.Share <= 1e9):
			return nil, fmt.Errorf("class %q: share must be positive", c.Name)
		case c.TTFT < 0 || c.TPOT < 0:
			return nil, fmt.Errorf("class %q: an SLO must not be negative", c.Name)
		}
	}
	return all, nil
}

// Classify gives calls the classes of a file, and returns the classes that their Class counts in. Classes that the trace has named get the
// settings of the one with the same name; otherwise each session gets one at random, by their shares.
func Classify(r *rand.Rand, calls []Call, named, file []Class) ([]Class, error) {
	if len(file) == 0 {
		return named, nil
	}
	if len(named) == 0 {
		assign(r, calls, file)
		return file, nil
	}
	all, matched := slices.Clone(named), false
	var names []string
	for i := range all {
		c := &all[i]
		names = append(names, fmt.Sprintf("%q", c.Name))
		at := slices.IndexFunc(file, func(o Class) bool { return o.Name == c.Name })
		if at < 0 {
			continue
		}
		matched = true
		flow, model := c.Flow, c.Model
		*c = file[at]
		if flow != "" {
			c.Flow = flow
		}
		if model != "" {
			c.Model = model
		}
	}
	if !matched {
		slices.Sort(names)
		return nil, fmt.Errorf("the trace has the classes %s, and the file none of them", strings.Join(slices.Compact(names), ", "))
	}
	return all, nil
}

// assign draws the class of each session.
func assign(r *rand.Rand, calls []Call, classes []Class) {
	sum := 0.0
	for _, c := range classes {
		sum += c.Share
	}
	for i := range calls {
		c := &calls[i]
		if c.After > 0 {
			c.Class = calls[c.After-1].Class
			continue
		}
		drawn := r.Float64() * sum
		for c.Class = 0; c.Class < len(classes)-1 && drawn >= classes[c.Class].Share; c.Class++ {
			drawn -= classes[c.Class].Share
		}
	}
}
