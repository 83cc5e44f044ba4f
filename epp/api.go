package epp

import "github.com/tandem-serving/tandem/pd"

// APISet is the APIs whose requests the picker reads. It passes the others through unread, to any endpoint of the first stage. The
// zero value is those of pd.APIs.
type APISet uint32

// NewAPISet returns the set of some APIs, which may be none.
func NewAPISet(apis ...pd.API) APISet {
	set := APISet(1) << pd.APIOther // so that no set is the zero value
	for _, api := range apis {
		set |= 1 << api
	}
	return set
}

// Has reports whether requests of an API are read.
func (s APISet) Has(api pd.API) bool {
	if s == 0 {
		s = usualAPIs
	}
	return s>>api&1 != 0
}

var usualAPIs = NewAPISet(pd.APIs()...)

// Parser is a plugin that says which APIs are read. Those of all parsers of a configuration count.
type Parser interface {
	Parses() []pd.API
}
