// Package envoyconf gives Envoy what it needs to use the ext-proc server: Bootstrap writes Envoy's configuration, Certificate the
// file that lets it follow a renewed certificate, and EDS is the endpoint discovery service that tells it the decode endpoints.
//
// Options enter Bootstrap, and YAML leaves it; snapshots of the pool enter EDS, and endpoints leave it on gRPC streams. The
// package runs no Envoy (stack/envoy does) and serves no ext-proc streams (epp/extproc does).
package envoyconf
