// Package transfertest has the suite that every transfer.Transport passes: the contract of package transfer as tests.
//
// A Kind enters: how to start agents of a transport, and which abilities the transport lacks by its nature. The suite reports to
// a *testing.T, and skips behaviours that need a missing ability, with the reason. What is special to one transport, such as its
// metadata format or lost connections, is tested in that transport's package.
package transfertest
