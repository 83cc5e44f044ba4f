package epp_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestAPISet(t *testing.T) {
	for _, c := range []struct {
		name string
		set  epp.APISet
		has  []pd.API
		not  []pd.API
	}{
		{"the usual", 0, pd.APIs(), []pd.API{pd.APISGLang}},
		{"none", epp.NewAPISet(), nil, append(pd.APIs(), pd.APISGLang)},
		{"two", epp.NewAPISet(pd.APIChat, pd.APISGLang), []pd.API{pd.APIChat, pd.APISGLang}, []pd.API{pd.APICompletions, pd.APIMessages}},
	} {
		for _, api := range c.has {
			if !c.set.Has(api) {
				t.Errorf("%s: %s is not read", c.name, api)
			}
		}
		for _, api := range c.not {
			if c.set.Has(api) {
				t.Errorf("%s: %s is read", c.name, api)
			}
		}
	}
}
