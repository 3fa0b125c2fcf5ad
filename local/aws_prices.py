"""List prices of AWS, in one place. On demand, without free tiers, discounts or taxes."""

from decimal import Decimal

VERSION = "2026-11"
REGION = "us-east-1"

# US dollars for a million.
DYNAMODB_WRITE = Decimal("0.625")  # a write unit: up to 1 KB
DYNAMODB_READ = Decimal("0.125")  # a read unit: up to 4 KB, consistent
SQS_REQUEST = Decimal("0.50")  # standard, and what is added for a fair queue
SNS_PUBLISH = Decimal("0.50")
LAMBDA_REQUEST = Decimal("0.20")
S3_PUT = Decimal("5.00")
# US dollars for a second of a GB of memory, on arm64.
LAMBDA_GB_SECOND = Decimal("0.0000133334")
