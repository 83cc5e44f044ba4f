// Package chars holds what tokenizers need to know of Unicode: classes of code points as the reference implementation has them, and
// normalisation forms. Its Set is a sorted list of ranges.
//
// Go's tables are of Unicode 15. The regular expressions of the reference, PyPI's tokenizers, are of Unicode 16, so its additions are in
// unicode16.go. Other parts of the reference have older versions: older.go has their classes, and what normal forms must leave alone. The package
// knows nothing of tokens.
package chars
