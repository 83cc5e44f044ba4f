package param

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// Within reports a parameter that is not in low..high. NaN is outside of every range.
func Within(report epp.Report, field string, v, low, high float64) {
	if !(v >= low && v <= high) {
		report(field, "must be from %v to %v, got %v", low, high, v)
	}
}

// AtLeast reports a parameter that is below low.
func AtLeast[T cmp.Ordered](report epp.Report, field string, v, low T) {
	switch {
	case v >= low:
	case low == *new(T):
		report(field, "must not be negative, got %v", v)
	default:
		report(field, "must be at least %v, got %v", low, v)
	}
}

const metricsProducer = "core-metrics-extractor"

// AttributeProducer reports a producer of endpoints' attributes that does not exist, and an attribute that it does not have.
func AttributeProducer(report epp.Report, field, name, attributeField, attribute string) {
	switch {
	case name == "", name == metricsProducer:
	case name != page.GPUProducer:
		report(field, "must be %s or %s, got %q", metricsProducer, page.GPUProducer, name)
	case attribute != page.GPUUtilization && attribute != "":
		report(attributeField, "%s has only the attribute %s, got %q", name, page.GPUUtilization, attribute)
	}
}

// ProducerOf returns the producer that a parameter names, in the form of epp.Load.Attribute.
func ProducerOf(name string) string {
	if name == metricsProducer {
		return ""
	}
	return name
}

// Correct replaces a value by its default unless it is valid, and warns of it.
func Correct[T any](warn epp.Report, field string, v *T, valid bool, fallback T) {
	if !valid {
		warn(field, "%v is not possible; as in llm-d, the default %v counts", *v, fallback)
		*v = fallback
	}
}

// References makes the result of epp.Referrer from alternating fields and names, and leaves out empty names.
func References(fieldsAndNames ...string) map[string]string {
	refs := make(map[string]string)
	for i := 0; i < len(fieldsAndNames); i += 2 {
		if name := fieldsAndNames[i+1]; name != "" {
			refs[fieldsAndNames[i]] = name
		}
	}
	return refs
}

// Refer returns the instance of the plugin that a parameter names, as a T. The parameter must not be empty.
func Refer[T any](b *epp.Builder, field, name string) (T, error) {
	var none T
	instance, ok := b.Instance(name)
	if !ok {
		return none, fmt.Errorf("%s: no plugin is named %q", field, name)
	}
	t, ok := instance.(T)
	if !ok {
		kind := reflect.TypeFor[T]()
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		return none, fmt.Errorf("%s: plugin %q is no %s", field, name, kind.Name())
	}
	return t, nil
}

// Matcher returns the matcher that the parameter prefixMatchInfoProducerName names, nil for an empty one: see epp.Round.Found.
func Matcher(b *epp.Builder, name string) (epp.Matcher, error) {
	if name == "" {
		return nil, nil
	}
	return Refer[epp.Matcher](b, "prefixMatchInfoProducerName", name)
}

// Check returns an error if a parameter names a plugin that is not a T. An empty parameter is correct.
func Check[T any](b *epp.Builder, field, name string) error {
	if name == "" {
		return nil
	}
	_, err := Refer[T](b, field, name)
	return err
}
